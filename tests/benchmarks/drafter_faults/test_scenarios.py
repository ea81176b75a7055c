import pytest

from benchmarks.drafter_faults.scenarios import SCENARIOS, failed

FINE = {"answers": 3, "failed": 0, "differing": 0, "grown": [], "as_expected": True, "accepted_after": 9}


def test_what_keeps_the_promises_is_not_blamed():
    assert failed(FINE) == []
    assert failed({"answers": 1, "failed": 0, "differing": 0}) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("answers", 0), ("failed", 1), ("differing", 2), ("fruitless", 1), ("grown", ["resident"])],
        *[("slow", ["back"]), ("unable", ["refused"]), ("as_expected", False), ("accepted_after", 0)],
    ],
)
def test_what_breaks_one_is_named(name, value):
    assert failed({**FINE, name: value}) == [name]


def test_every_fault_can_be_asked_for():
    assert {"kill", "hang", "garbage", "stale", "flood", "twice", "kernel", "verify", "swap"} <= set(SCENARIOS)
