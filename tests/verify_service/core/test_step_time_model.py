"""Passes are priced by requests and nodes, as measured, and by what they take."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_kernels.models.checkpoint.expert_form import ExpertForm
from verify_service.core.step_time_model import StepTimeModel

H200 = [
    *((1, rows, 1e-3 * ms) for rows, ms in ((1, 4.22), (16, 4.54), (32, 4.82), (64, 5.23))),
    *((4, rows, 1e-3 * ms) for rows, ms in ((4, 4.37), (32, 5.0), (64, 5.32), (128, 6.79))),
    *((16, rows, 1e-3 * ms) for rows, ms in ((16, 5.02), (64, 5.91), (128, 7.29), (256, 10.57), (512, 19.27))),
    *((64, rows, 1e-3 * ms) for rows, ms in ((64, 6.74), (128, 10.12), (256, 13.37), (512, 21.02))),
]
"""Measured on one (docs/performance.md, exact mode)."""
ROWS = [(1, 1, 1e-3), (1, 2, 2e-3), (1, 8, 3e-3)]
FLAT = [(1, 1, 2e-3)]

tables = st.lists(
    st.tuples(st.integers(1, 64), st.integers(0, 200), st.floats(1e-6, 1.0)).map(lambda x: (x[0], x[0] + x[1], x[2])),
    min_size=1,
    max_size=20,
)


def test_what_was_measured_is_the_price_of_it() -> None:
    costs = StepTimeModel(H200)
    for requests, rows, seconds in H200:
        assert costs.seconds(requests, rows - requests) == pytest.approx(seconds)


def test_equal_rows_cost_more_the_more_requests_they_are_of() -> None:
    costs = StepTimeModel(H200)
    prices = [costs.seconds(requests, 64 - requests) for requests in (1, 4, 10, 16, 40, 64)]
    assert prices == sorted(prices)
    assert prices[-1] > 1.25 * prices[0]


def test_between_numbers_of_requests_prices_are_between_theirs() -> None:
    costs = StepTimeModel(H200)
    assert costs.seconds(10, 48) == pytest.approx((costs.seconds(4, 48) + costs.seconds(16, 48)) / 2)


def test_nodes_beyond_those_measured_add_what_they_add_to_more_requests() -> None:
    costs = StepTimeModel(H200)
    added = costs.seconds(4, 124) - costs.seconds(4, 63)
    assert costs.seconds(1, 124) - costs.seconds(1, 63) == pytest.approx(added)
    slope = (costs.seconds(64, 448) - costs.seconds(64, 192)) / 256
    assert costs.seconds(64, 948) == pytest.approx(costs.seconds(64, 448) + 500 * slope)


def test_where_one_request_was_measured_all_rows_cost_the_same() -> None:
    costs = StepTimeModel(ROWS)
    assert [costs.seconds(requests, 8 - requests) for requests in range(1, 9)] == pytest.approx([3e-3] * 8)
    assert costs.seconds(14) == pytest.approx(4e-3)


def test_one_entry_is_the_price_of_all() -> None:
    costs = StepTimeModel(FLAT)
    assert costs.seconds(1) == costs.seconds(64, 500) == 2e-3
    for _ in range(100):
        costs.observe(8, 8, 6e-3)
    assert costs.seconds(3) == pytest.approx(6e-3, rel=1e-3)


def test_what_a_pass_takes_longer_or_less_is_told_in_what_it_should() -> None:
    costs = StepTimeModel(FLAT)
    assert [costs.excess(1, 1e-3 * ms) for ms in (1.0, 2.0, 2.5)] == pytest.approx([-0.5, 0.0, 0.25])
    assert costs.excess(1, 1.0) == pytest.approx(1.0), "one that is held up counts as two"


@pytest.mark.parametrize("table", [H200, ROWS, FLAT])
def test_costs_of_several_passes_are_those_of_each(table: list[tuple[int, int, float]]) -> None:
    costs = StepTimeModel(table)
    for requests, first, count in ((1, 0, 3), (16, 2, 90), (5, 60, 700)):
        costs.observe(2, 5, 6e-3)
        each = [costs.seconds(requests, nodes) for nodes in range(first, first + count)]
        assert costs.predict_range(requests, first, count).tolist() == each
        assert costs.predict(requests, np.arange(first, first + count, dtype=float)) == pytest.approx(each)


def test_plain_passes_that_take_longer_make_all_of_them_dearer_and_nodes_no_cheaper() -> None:
    costs = StepTimeModel(H200)
    before, added = costs.seconds(16), costs.seconds(16, 80) - costs.seconds(16)
    for _ in range(100):
        costs.observe(4, 0, 2 * 4.37e-3)
    assert costs.seconds(16) == pytest.approx(2 * before, rel=0.01)
    assert costs.seconds(16, 80) - costs.seconds(16) == pytest.approx(added)


def test_nodes_that_take_longer_make_trees_dearer_and_not_plain_passes() -> None:
    costs = StepTimeModel(H200)
    plain, added = costs.seconds(16), costs.seconds(16, 240) - costs.seconds(16)
    for _ in range(200):
        costs.observe(16, 0, plain)
        costs.observe(16, 240, plain + 1.5 * added)
    assert costs.seconds(16) == pytest.approx(plain, rel=0.02)
    assert costs.seconds(16, 240) == pytest.approx(plain + 1.5 * added, rel=0.02)


def test_trees_that_take_longer_from_the_start_leave_plain_passes_as_they_were_measured() -> None:
    costs = StepTimeModel(H200)
    plain, drafted = costs.seconds(16), costs.seconds(16, 80)
    for _ in range(64):
        costs.observe(16, 80, 1.5 * drafted)
    assert costs.seconds(16) == pytest.approx(plain, rel=0.1)
    assert costs.seconds(16, 80) == pytest.approx(1.5 * drafted, rel=0.03)


def test_one_pass_that_takes_long_changes_little() -> None:
    costs = StepTimeModel(H200)
    costs.observe(16, 80, 5.0)
    assert costs.seconds(16, 80) < 1.11 * StepTimeModel(H200).seconds(16, 80)


@given(
    table=tables,
    seen=st.lists(st.tuples(st.integers(1, 80), st.integers(0, 300), st.floats(0.0, 10.0)), max_size=20),
    requests=st.integers(1, 100),
)
def test_prices_are_positive_and_never_fall_with_nodes(
    table: list[tuple[int, int, float]], seen: list[tuple[int, int, float]], requests: int
) -> None:
    costs = StepTimeModel(table)
    for each in seen:
        costs.observe(*each)
    prices = [costs.seconds(requests, nodes) for nodes in (0, 1, 2, 7, 60, 250, 400)]
    assert prices[0] > 0
    assert all(after >= before * (1 - 1e-9) for before, after in pairwise(prices))


@given(table=tables, nodes=st.integers(0, 300))
def test_tables_never_fall_with_requests(table: list[tuple[int, int, float]], nodes: int) -> None:
    costs = StepTimeModel(table)
    prices = [costs.seconds(requests, nodes) for requests in (1, 2, 3, 17, 40, 64, 90)]
    assert all(after >= before * (1 - 1e-9) for before, after in pairwise(prices))


@pytest.mark.parametrize("context", [345, 8192, 32768])
def test_contexts_are_priced_whatever_the_load_becomes(context: int) -> None:
    model, truth = StepTimeModel(H200), StepTimeModel(H200)
    token = 131072 / 4.26e12

    def taken(requests: int, nodes: int) -> float:
        return truth.seconds(requests, nodes) + requests * (context - 1024) * token

    for step in range(60):
        nodes = 64 * (step % 3)
        model.observe(64, nodes, taken(64, nodes), context)
    for requests, nodes in ((64, 0), (64, 192), (16, 64), (1, 0), (1, 5)):
        assert model.seconds(requests, nodes) == pytest.approx(taken(requests, nodes), rel=0.1)


def test_experts_that_requests_wake_are_no_price_of_their_context() -> None:
    token, row = 3e-8, 1e-4

    def taken(requests: int, rows: int, context: int = 1024) -> float:
        return 3e-3 + row * rows + requests * context * token

    sizes = [(1, rows) for rows in (1, 16, 64)] + [(16, rows) for rows in (16, 64, 256)] + [(64, 64), (64, 256)]
    costs = StepTimeModel([(*each, taken(*each)) for each in sizes], ExpertForm(8, 2, 96, (True,), normalised=True))
    costs.observe(64, 0, taken(64, 64, 300), 300)
    assert costs.seconds(64) == pytest.approx(taken(64, 64, 300), rel=0.01)
    assert costs.seconds(16) == pytest.approx(taken(16, 16, 300), rel=0.01)


MIXTURE = [
    *((1, rows, ms) for rows, ms in ((1, 3.05), (2, 3.62), (4, 4.58), (8, 5.89), (16, 7.31), (32, 9.13), (64, 10.86))),
    *((4, rows, ms) for rows, ms in ((4, 4.47), (8, 5.98), (16, 7.31), (32, 9.31), (64, 11.19), (128, 15.19))),
    *((16, rows, ms) for rows, ms in ((16, 7.60), (32, 9.51), (64, 11.60), (96, 14.63), (128, 15.40), (512, 28.15))),
    *((64, rows, ms) for rows, ms in ((64, 12.15), (128, 16.03), (256, 19.22), (384, 22.37), (512, 26.81))),
]
"""Requests, rows, milliseconds: passes with Qwen3-30B-A3B's shapes in FP8 on an H200, rows choosing independently."""


@pytest.mark.parametrize(
    ("requests", "nodes", "awake", "added"),
    [(1, 6, 2.1, 1.6), (4, 18, 4.7, 2.1), (16, 102, 12.7, 6.8), (64, 409, 23.9, 14.2)],
)
def test_nodes_that_wake_few_experts_are_spared_these_alone(
    requests: int, nodes: int, awake: float, added: float
) -> None:
    """Of text on that model: nodes of steps, rows that would wake as many, and the milliseconds that trees took."""
    measured = [(each, rows, ms / 1e3) for each, rows, ms in MIXTURE]
    costs = StepTimeModel(measured, ExpertForm(128, 8, 768, (True,) * 48, normalised=True))
    plain, drafted = costs.predict(requests, np.array([0.0, nodes]), np.array([0.0, awake]))
    assert 1e3 * (drafted - plain) == pytest.approx(added, rel=0.25)
    independent = costs.seconds(requests, nodes)
    assert drafted < independent
    each = np.arange(nodes + 1.0)
    assert (np.diff(costs.predict(requests, each, each * awake / nodes)) >= 0).all()
    for _ in range(100):
        costs.observe(requests, nodes, drafted, awake=awake)
    assert costs.seconds(requests, nodes) == pytest.approx(independent)


def test_where_requests_were_not_measured_a_context_costs_nothing() -> None:
    model = StepTimeModel(ROWS)
    before = model.seconds(4, 2)
    model.observe(1, 0, 1e-3, 32768)
    assert model.seconds(4, 2) == pytest.approx(before)
    assert model.growth(1) == 1.0


def test_what_trees_cost_whatever_their_size_is_the_price_of_no_node_and_of_no_pass_without() -> None:
    costs, random = StepTimeModel(H200), np.random.default_rng(5)
    before = [costs.seconds(16, nodes) for nodes in (0, 32, 64)]
    for step in range(600):
        nodes = 0 if step % 12 == 0 else int(random.integers(16, 80))
        costs.observe(16, nodes, StepTimeModel(H200).seconds(16, nodes) + (1.5e-3 if nodes else 0.0))
    after = [costs.seconds(16, nodes) for nodes in (0, 32, 64)]
    assert after[0] == pytest.approx(before[0], rel=0.04)
    assert after[1] - after[0] == pytest.approx(before[1] - before[0] + 1.5e-3, rel=0.15)
    assert after[2] - after[1] == pytest.approx(before[2] - before[1], abs=0.2e-3)


def test_passes_that_all_have_trees_tell_at_last_what_passes_without_take() -> None:
    costs = StepTimeModel(H200)
    plain = costs.seconds(16)
    costs.observe(16, 0, plain)
    for _ in range(40):
        costs.observe(16, 48, 2 * StepTimeModel(H200).seconds(16, 48))
    assert costs.seconds(16) < 1.2 * plain
    for _ in range(2000):
        costs.observe(16, 48, 4 * StepTimeModel(H200).seconds(16, 48))
    assert costs.seconds(16) > 1.3 * plain
