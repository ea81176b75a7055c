"""A drafter that computes on the target's own processors costs passes time whenever it takes in text, asked or not."""

from __future__ import annotations

import pytest

from support.virtual_rounds import Machine, Rounds
from verify_service.speculation.gate import FORGET_FIRST, PROBE_EVERY

CPU = Machine(
    ((1, 1, 1.30e-3), (1, 2, 1.34e-3), (1, 4, 1.6e-3), (1, 8, 2.0e-3), (1, 16, 2.9e-3), (1, 32, 4.8e-3)),
    text=(1.5, 0.2),
    level=(2.0, 0.5),
    host=(0.1, 0.02),
    shared=0.5,
    row=0.1,
)
"""A small model on two cores, and a head that takes as long for a level as the model for a step."""
QUICK = Machine(CPU.passes, text=(0.1, 0.02), level=(0.1, 0.02), host=(0.1, 0.02), shared=0.5, row=0.01)


@pytest.mark.parametrize("chances", [(0.9,), (0.2,)])
def test_a_head_that_cannot_pay_costs_next_to_nothing(
    monkeypatch: pytest.MonkeyPatch, chances: tuple[float, ...]
) -> None:
    rounds = Rounds(monkeypatch, 1, tokens=128, machine=CPU)
    rounds.head.chances = chances
    assert rounds.share_of_plain(rounds.rounds(12 * PROBE_EVERY)) > 0.975
    assert rounds.share_of_plain(rounds.rounds(5000)) > 0.985


def test_one_that_could_not_pay_if_it_were_always_right_is_hardly_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds(monkeypatch, 1, tokens=128, machine=CPU)
    rounds.rounds(12 * PROBE_EVERY)
    log = rounds.rounds(4 * FORGET_FIRST)
    assert any(each.nodes for each in log), "prices are looked at anew"
    assert rounds.share_of_plain(log) > 0.995


@pytest.mark.parametrize("lie", [1.0, 20.0])
def test_one_that_could_not_pay_and_gets_quicker_is_found_out(monkeypatch: pytest.MonkeyPatch, lie: float) -> None:
    """It took and said 20 times as much as now, or said so alone, as the machine was busy when it measured itself."""
    said = [cost._replace(seconds=20.0 * cost.seconds) for cost in Rounds(monkeypatch, 1, machine=QUICK).head.costs]
    rounds = Rounds(monkeypatch, 1, tokens=128, machine=QUICK, costs=said)
    rounds.head.slow = 20.0 / lie
    assert rounds.share_of_plain(rounds.rounds(600)) > 0.94
    rounds.head.slow = 1.0
    rounds.rounds(2 * FORGET_FIRST)
    assert rounds.share_of_plain(rounds.rounds(300)) > 1.35


def test_one_that_does_not_say_what_it_takes_is_tried_in_vain_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds(monkeypatch, 1, tokens=128, machine=CPU, costs=())
    assert rounds.share_of_plain(rounds.rounds(12 * PROBE_EVERY)) > 0.9
    assert rounds.share_of_plain(rounds.rounds(5000)) > 0.975


def test_of_a_long_text_it_takes_in_little_but_what_probes_are_about(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds(monkeypatch, 1, tokens=2000, machine=CPU)
    assert rounds.share_of_plain(rounds.rounds(12 * PROBE_EVERY)) > 0.95
    assert rounds.share_of_plain(rounds.rounds(5000)) > 0.97


@pytest.mark.parametrize("tokens", [128, 10**6])
def test_one_that_pays_is_drafted_with(monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    rounds = Rounds(monkeypatch, 1, tokens=tokens, machine=QUICK)
    assert rounds.share_of_plain(rounds.rounds(300)) > 1.35


def test_one_that_gets_quicker_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds(monkeypatch, 1, tokens=128, machine=QUICK)
    rounds.head.slow = 20.0
    assert rounds.share_of_plain(rounds.rounds(600)) > 0.94
    rounds.head.slow = 1.0
    rounds.rounds(3000)
    assert rounds.share_of_plain(rounds.rounds(300)) > 1.35
