"""Plans hold what was asked for, and parts of processes hold each plan once."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.serving.load import Closed, Open, Ramp, loads_of

prompts = st.integers(1, 300)


@given(st.integers(1, 64), st.integers(0, 5), prompts)
def test_a_closed_loop_asks_every_prompt_or_so_many_a_client(concurrency, per_client, number):
    plan = Closed(concurrency, per_client).plan(number)
    assert plan.requests == (min(number, per_client * concurrency) if per_client else number)
    assert len(plan.clients) == min(concurrency, plan.requests)
    assert set(plan.clients) == {(0.0, math.inf)}


@given(st.floats(0.1, 500), st.integers(0, 9), prompts, st.floats(0, 20))
def test_an_open_loop_is_drawn_by_its_seed_within_its_time(rate, seed, number, longest):
    plan = Open(rate, seed, longest).plan(number)
    assert plan == Open(rate, seed, longest).plan(number)
    times = [at for at, _ in plan.arrivals]
    assert times[0] == 0.0
    assert times == sorted(times)
    assert times[-1] <= longest
    assert [prompt for _, prompt in plan.arrivals] == list(range(len(times)))
    assert plan.arrivals == Open(rate, seed).plan(number).arrivals[: len(times)]


def test_arrivals_are_a_poisson_process():
    times = [at for at, _ in Open(20.0, 1).plan(20_001).arrivals]
    gaps = [after - before for before, after in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(1 / 20, rel=0.03)
    assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) == pytest.approx(mean**2, rel=0.06)


@given(st.integers(1, 200), st.floats(0.5, 60), st.floats(0, 1))
def test_a_ramp_is_a_triangle(peak, length, part):
    at = part * length
    here = sum(on <= at <= off for on, off in Ramp(peak, length).plan(5).clients)
    expected = 1 + (peak - 1) * (1 - abs(2 * part - 1))
    assert abs(here - expected) <= 1 + 1e-6


@given(st.sampled_from([Closed(7), Closed(64, 2), Open(3.0, 1), Ramp(9, 4.0)]), prompts, st.integers(1, 6))
def test_parts_hold_the_plan_once(load, number, parts):
    whole = load.plan(number)
    pieces = [whole.part(index, parts) for index in range(parts)]
    name = "arrivals" if isinstance(load, Open) else "clients"
    assert sorted(each for piece in pieces for each in getattr(piece, name)) == sorted(getattr(whole, name))


def test_loads_come_in_order():
    ramp = Ramp(4, 2.0)
    names = [load.name for load in loads_of((1, 4), 3, (2.5,), math.inf, ramp, 0)]
    assert names == ["1", "4", "2.5/s", "1 to 4 to 1 in 2 s"]
