"""What rounds take between and beyond what drafters say of them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_kernels.draft_protocol.records import RoundCost
from verify_service.core.step_time_model import LEAST_SECONDS, StepTimeModel
from verify_service.speculation.round_table import RoundTable

PASSES = StepTimeModel([(1, 1, 4e-3), (16, 16, 5e-3), (64, 64, 8e-3), (256, 256, 24e-3)])


def table(*costs: tuple[int, int, float]) -> RoundTable:
    return RoundTable([RoundCost(*cost) for cost in costs], PASSES)


def test_between_what_was_said_rounds_lie_on_lines() -> None:
    said = table((1, 1, 1e-3), (1, 5, 3e-3), (17, 1, 2e-3), (17, 5, 6e-3))
    assert said.seconds(1, 1) == pytest.approx(1e-3)
    assert said.seconds(1, 3) == pytest.approx(2e-3)
    assert said.seconds(9, 5) == pytest.approx(4.5e-3)
    assert said.seconds(17, 9) == pytest.approx(10e-3)


def test_beyond_the_most_requests_rounds_grow_as_passes_do() -> None:
    said = table((64, 1, 1e-3), (64, 5, 3e-3))
    assert said.seconds(256, 5) == pytest.approx(3 * said.seconds(64, 5))
    assert said.seconds(1, 5) == pytest.approx(3e-3)


def test_what_passes_come_to_take_is_no_price_of_rounds() -> None:
    passes = StepTimeModel([(1, 1, 4e-3), (16, 16, 5e-3), (64, 64, 8e-3), (256, 256, 24e-3)])
    costs = [RoundCost(64, 1, 1e-3), RoundCost(64, 5, 3e-3)]
    before = RoundTable(costs, passes)
    first = before.seconds(256, 5)
    for _ in range(100):
        passes.observe(256, 0, 96e-3, context=8192)
    assert passes.seconds(256) > 2 * 24e-3
    assert before.seconds(256, 5) == RoundTable(costs, passes).seconds(256, 5) == first


def test_rounds_of_one_depth_say_what_others_take_all_the_same() -> None:
    said = table((1, 4, 6e-3))
    assert said.seconds(1, 4) == pytest.approx(6e-3)
    assert said.seconds(1, 1) < said.seconds(1, 2) < 6e-3


def test_a_number_of_requests_that_was_held_up_is_known_by_its_neighbours() -> None:
    """Rounds only ever take longer than they need: neither 20 ms for 16, nor 9 for one, can be true of these."""
    said = table((1, 1, 9e-3), (1, 5, 9e-3), (4, 1, 1e-3), (4, 5, 2e-3), (16, 1, 20e-3), (16, 5, 20e-3))
    assert said.seconds(1, 1) == pytest.approx(1e-3) and said.seconds(1, 5) == pytest.approx(2e-3)
    assert said.seconds(16, 1) == pytest.approx(4e-3) and said.seconds(16, 5) == pytest.approx(8e-3)
    assert table((1, 1, 1e-3), (1, 5, 50e-3)).seconds(1, 5) == pytest.approx(5e-3)


@given(
    costs=st.lists(
        st.tuples(st.integers(1, 65_536), st.integers(1, 63), st.floats(5e-324, 60.0)), min_size=1, max_size=64
    ),
    requests=st.integers(1, 1000),
    levels=st.integers(1, 63),
)
def test_whatever_is_said_rounds_take_some_time_and_more_of_them_no_less(
    costs: list[tuple[int, int, float]], requests: int, levels: int
) -> None:
    said = table(*costs)
    more = [said.seconds(requests + further, levels) for further in (0, 1, 10, 100)]
    assert all(LEAST_SECONDS <= few <= many < 1e9 for few, many in pairwise(more))
    assert said.seconds(requests, levels) <= said.seconds(requests, levels + 1)
