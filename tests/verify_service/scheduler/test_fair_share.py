"""Weighted shares: bounds, work conservation, no starvation, and idleness that earns nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.verify_loop import admitted
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request_state import RequestState
from verify_service.scheduler.fair_share import (
    MAX_REMEMBERED,
    FairShare,
    Tenant,
    displaceable,
    gives_way,
    split,
    split_whole,
)

CONFIG = EngineConfig(num_pages=64)
WEIGHTS = st.sampled_from([0.5, 1.0, 2.0, 3.0])


def request(tenant: str, ticket: int = 0, weight: float = 1.0, output: tuple[int, ...] = ()) -> RequestState:
    return admitted(CONFIG, [3, 4], request_id=ticket, tenant=tenant, weight=weight, output=output)


@given(st.lists(st.tuples(WEIGHTS, st.integers(1, 40)), min_size=2, max_size=5), st.integers(50, 400))
def test_service_of_those_who_always_want_differs_by_no_more_than_a_request(
    tenants: list[tuple[float, int]], turns: int
) -> None:
    share = FairShare()
    sizes: dict[str, int] = {}
    for index, (weight, size) in enumerate(tenants):
        share.enter(request(str(index), weight=weight))
        sizes[str(index)] = size
    largest = max(size / weight for weight, size in tenants)
    for _ in range(turns):
        first = share.by_service()[0]
        share.charge(first, sizes[first.name])
        served = [tenant.served for tenant in share]
        assert max(served) - min(served) <= largest + 1e-6


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 50)), max_size=60), st.integers(0, 30))
def test_who_comes_back_is_neither_owed_nor_excused(events: list[tuple[str, int]], idle: int) -> None:
    share = FairShare()
    stays = request("stays")
    share.enter(stays)
    for ticket, (name, rows) in enumerate(events):
        state = request(name, ticket)
        before = min(tenant.served for tenant in share)
        share.enter(state)
        tenant = share.of(state)
        assert tenant.served >= before
        share.charge(tenant, rows)
        share.charge(share.of(stays), idle)
        served = tenant.served
        share.leave(state, waiting=True)
        share.enter(state)
        assert share.of(state).served >= served
        share.leave(state, waiting=True)


def test_idleness_earns_nothing_and_debts_are_kept() -> None:
    share = FairShare()
    busy, other = request("busy"), request("other", 1)
    share.enter(busy)
    share.enter(other)
    share.charge(share.of(busy), 1000)
    share.charge(share.of(other), 800)
    share.leave(other, waiting=True)
    share.enter(other)
    assert share.of(other).served == 1000
    share.charge(share.of(other), 500)
    share.leave(other, waiting=True)
    share.charge(share.of(busy), 1)
    late = request("late", 2)
    share.enter(late)
    share.enter(other)
    assert share.of(other).served == 1500
    assert share.of(late).served == 1000


def test_nothing_is_counted_for_one_tenant_alone_and_nothing_kept_of_none() -> None:
    share = FairShare()
    state = request("only")
    share.enter(state)
    share.charge(share.of(state), 10**6)
    assert share.of(state).served == 0
    share.leave(state, waiting=True)
    assert (len(share), share.num_waiting) == (0, 0)


def test_what_is_kept_of_tenants_that_left_is_bounded() -> None:
    share = FairShare()
    share.enter(request("stays"))
    for ticket in range(MAX_REMEMBERED + 10):
        state = request(f"user-{ticket}", ticket)
        share.enter(state)
        share.charge(share.of(state), 5)
        share.leave(state, waiting=True)
    assert len(share._ahead) <= MAX_REMEMBERED


@given(st.lists(st.tuples(st.integers(0, 50), WEIGHTS), min_size=1, max_size=8), st.integers(0, 120))
def test_shares_are_max_min_fair_and_waste_nothing(parts: list[tuple[int, float]], room: int) -> None:
    demands, weights = [float(demand) for demand, _ in parts], [weight for _, weight in parts]
    shares = split(room, demands, weights)
    assert sum(shares) == pytest.approx(min(room, sum(demands)))
    assert all(0 <= share <= demand + 1e-9 for share, demand in zip(shares, demands, strict=True))
    highest = max((share / weight for share, weight in zip(shares, weights, strict=True)), default=0.0)
    for share, demand, weight in zip(shares, demands, weights, strict=True):
        assert share >= demand - 1e-6 or share / weight >= highest - 1e-6
    whole = split_whole(room, [demand for demand, _ in parts], weights)
    assert sum(whole) == min(room, sum(demand for demand, _ in parts))
    assert all(abs(each - share) <= len(parts) for each, share in zip(whole, shares, strict=True))


@given(st.integers(1, 40), WEIGHTS, st.integers(0, 40), WEIGHTS)
def test_what_moved_is_not_moved_back(over: int, over_weight: float, under: int, under_weight: float) -> None:
    if gives_way(over - 1, over_weight, under + 1, under_weight):
        assert not gives_way(under, under_weight, over, over_weight)


def tenant_of(name: str, waiting: list[RequestState], running: int = 0, weight: float = 1.0) -> Tenant:
    tenant = Tenant(name, weight, 0.0, running=running)
    tenant.waiting.extend(waiting)
    return tenant


def test_the_latest_unstarted_request_of_the_largest_holder_gives_its_place() -> None:
    queue = [request("heavy", ticket) for ticket in range(4)]
    heavy, small = tenant_of("heavy", queue, running=2), tenant_of("small", [request("small", 9)])
    assert displaceable([small, heavy], "new", 0, 1.0) is queue[3]
    queue[3].started = True
    assert displaceable([small, heavy], "new", 0, 1.0) is queue[2]
    resumed = [request("heavy", ticket, output=(5,)) for ticket in range(4)]
    assert displaceable([tenant_of("heavy", resumed, running=2)], "new", 0, 1.0) is None


def test_nobody_gives_way_to_one_who_holds_as_much() -> None:
    queue = [request("heavy", ticket) for ticket in range(4)]
    heavy = tenant_of("heavy", queue)
    assert displaceable([heavy], "new", 2, 1.0) is queue[3]
    assert displaceable([heavy], "new", 3, 1.0) is None
    assert displaceable([heavy], "heavy", 4, 1.0) is None
    heavy.weight = 3.0
    assert displaceable([heavy], "new", 0, 1.0) is queue[3]
    assert displaceable([heavy], "new", 1, 1.0) is None


def test_a_light_holder_of_one_place_does_not_shield_a_crowd() -> None:
    tenants = FairShare()
    tenants.enter(admitted(CONFIG, [3], request_id=1, tenant="light", weight=0.1))
    crowd = [admitted(CONFIG, [3], request_id=10 + i, tenant="crowd") for i in range(9)]
    for state in crowd:
        tenants.enter(state)
    assert displaceable(tenants, "newcomer", 0, 1.0) is crowd[-1]
