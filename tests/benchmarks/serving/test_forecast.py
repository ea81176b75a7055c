from __future__ import annotations

import pytest

from benchmarks.serving.forecast import NOTHING, Forecast, promised
from benchmarks.serving.tables import gains
from slipstream.v1.verify_pb2 import SpeculationForecast


def test_what_is_promised_is_of_the_steps_between() -> None:
    before = SpeculationForecast(steps=10, drafted_steps=10, tokens=30, seconds=1, plain_tokens=10, plain_seconds=0.9)
    after = SpeculationForecast(steps=30, drafted_steps=15, tokens=80, seconds=3, plain_tokens=30, plain_seconds=2.5)
    found = promised(before, after)
    assert found == {"predicted_gain": pytest.approx((50 / 2.0) / (20 / 1.6)), "steps_with_trees": 0.25}
    assert promised(NOTHING, before)["predicted_gain"] == pytest.approx(3 * 0.9)


def test_nothing_is_promised_where_no_step_was_weighed() -> None:
    same = SpeculationForecast(steps=3, tokens=3, seconds=1, plain_tokens=3, plain_seconds=1)
    assert promised(same, same) == promised(NOTHING, Forecast().sums()) == {
        "predicted_gain": None, "steps_with_trees": None
    }  # fmt: skip
    assert Forecast("127.0.0.1:9").address


def test_the_table_has_what_was_promised_beside_what_came() -> None:
    def cell(form: str, load: str, speed: float | None, gain: float | None) -> dict[str, object]:
        named = {"form": form, "budget": "default", "context": 0, "load": load}
        return named | {"tokens_per_second": speed, "predicted_gain": gain, "steps_with_trees": 0.5}

    cells = [cell("plain", "1", 100.0, None), cell("inproc", "1", 150.0, 1.6), cell("inproc", "4", 90.0, 1.2)]
    found = [[part.strip() for part in line.split("|")[1:-1]] for line in gains(cells).splitlines()[2:]]
    assert found == [["inproc, default", "1", "1.60", "1.50", "0.50"], ["inproc, default", "4", "1.20", "-", "0.50"]]
    assert gains([cell("inproc", "1", 1.0, None), {"form": "mps", "budget": "off", "context": 0, "load": "1"}]) == ""
