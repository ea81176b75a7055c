"""How figures of traces are told."""

import math

import pytest

from benchmarks.trace_cost.__main__ import OTHER, PLAIN, beside_plain
from benchmarks.trace_cost.rounds import Load, Round
from benchmarks.trace_cost.tables import mean_interval, text

FACTS = {"time": "now", "cores": 2, "processor": "P", "load_average": 0.5}


def test_rounds_are_compared_with_plain_ones_beside_them():
    plain = [Round(100.0, 100.0, {"verify": 1.0, "gateway": 0.5}), Round(200.0, 200.0, {"verify": 2.0, "gateway": 1.0})]
    other = [Round(99.0, 50.0, {"verify": 1.0, "gateway": 0.8}), Round(190.0, 180.0, {"verify": 2.0, "gateway": 1.3})]
    found = {PLAIN: plain, OTHER: other}
    told = beside_plain(found, Load(4, 8, 10))
    assert told["rate_ratios"] == [0.99, 0.95]
    assert [round(ratio, 6) for ratio in told["cpu_ratios"]] == [1.2, 1.1]
    assert beside_plain(found, Load(4, 8, 10), untraced=True)["rate_ratios"] == [0.5, 0.9]
    written = text({"pieces": {"a piece": [1.0, 2.0, 3.0]}, "machine": FACTS,
                    "parts": [{"way": "traced", "bound": "3 %", **told}]})  # fmt: skip
    assert "| a piece | 2 (2 to 2) |" in written
    assert "0.970 (0.960 to 0.980)" in written and "1.150 (1.125 to 1.175)" in written


def test_a_mean_is_between_limits_that_close_in():
    low, mean, high = mean_interval([0.5, 2.0] * 8)
    assert mean == pytest.approx(1.0) and low * high == pytest.approx(1.0)
    error = 1.959964 * math.log(2.0) * math.sqrt(16 / 15) / 4  # of the mean of 16 logarithms, each log 2 from it
    assert math.log(high) == pytest.approx(error, rel=1e-5)
    assert mean_interval([0.9]) == (pytest.approx(0.9),) * 3
