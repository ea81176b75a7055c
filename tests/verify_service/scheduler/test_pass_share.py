"""How much of a pass several tenants may have, by a table of costs in which each row takes 1 ms."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from support.verify_loop import admitted
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request_state import RequestState
from verify_service.core.step_time_model import StepTimeModel
from verify_service.scheduler.fair_share import Tenant
from verify_service.scheduler.pass_share import ALL, BURST_CHUNKS, MOST_HELD_BACK, SLOWDOWN, Demand, Load, PassShare

CONFIG = EngineConfig(num_pages=64)
CHUNK = 64


def passes(base: float = 0.0) -> PassShare:
    """Each row takes 1 ms, and each pass `base` ms besides."""
    return PassShare(StepTimeModel([(1, rows, 1e-3 * (base + rows)) for rows in (1, 64)]), CHUNK)


def decoding(name: str, count: int, first: int = 0, weight: float = 1.0, prompt_rows: int = 0) -> Demand:
    states = [admitted(CONFIG, [3, 4], request_id=first + i, tenant=name) for i in range(count)]
    return Demand(Tenant(name, weight, 0.0, prompt_credit=0.0), states, prompt_rows)


def rows_of(share: PassShare, demands: list[Demand]) -> dict[str, int]:
    turns = share.turns(demands)
    return {
        each.tenant.name: sum(state not in turns.left_out for state in each.decoding)
        + turns.prompt_rows.get(each.tenant.name, each.prompt_rows)
        for each in demands
    }


def test_a_light_tenant_keeps_its_rows_and_the_pass_is_bounded() -> None:
    share = passes()
    demands = [decoding("light", 1), decoding("heavy", 20, first=10)]
    for _ in range(20):
        rows = rows_of(share, demands)
        assert rows["light"] == 1
        assert rows["light"] + rows["heavy"] <= SLOWDOWN * 2


def test_those_who_take_turns_all_get_them() -> None:
    share = passes()
    demands = [decoding("light", 1), decoding("heavy", 20, first=10)]
    served: dict[RequestState, int] = {}
    for _ in range(100):
        turns = share.turns(demands)
        for state in demands[1].decoding:
            served[state] = served.get(state, 0) + (state not in turns.left_out)
    assert min(served.values()) >= 9
    assert max(served.values()) - min(served.values()) <= 1


def test_equal_loads_and_cheap_rows_are_left_alone() -> None:
    assert passes().turns([decoding("one", 8), decoding("two", 8, first=10)]) is ALL
    assert passes(base=100).turns([decoding("light", 1), decoding("heavy", 20, first=10)]) is ALL


def test_prompts_are_saved_up_for_in_slices() -> None:
    share = passes()
    demands = [decoding("light", 1), decoding("heavy", 0, first=10, prompt_rows=CHUNK)]
    rows = [rows_of(share, demands)["heavy"] for _ in range(80)]
    assert set(rows) == {0, CHUNK // 8}
    assert 100 <= sum(rows) <= 80 * SLOWDOWN * 2


def test_a_burst_of_prompts_is_for_free_once() -> None:
    share = passes()
    demands = [decoding("light", 1), decoding("heavy", 0, first=10, prompt_rows=CHUNK)]
    demands[1].tenant.prompt_credit = None
    rows = [rows_of(share, demands)["heavy"] for _ in range(12)]
    assert rows[:BURST_CHUNKS] == [CHUNK] * BURST_CHUNKS
    assert set(rows[BURST_CHUNKS:]) == {0, CHUNK // 8}
    for _ in range(3 * CHUNK):
        share.turns([demands[0], decoding("other", 1)])
        share.turns([demands[0], Demand(demands[1].tenant, decoding("heavy", 1, first=20).decoding)])
    assert demands[1].tenant.prompt_credit is not None
    assert CHUNK < demands[1].tenant.prompt_credit <= BURST_CHUNKS * CHUNK


def test_decodes_and_prompts_of_one_tenant_go_halves() -> None:
    share = passes()
    demands = [decoding("light", 4), decoding("heavy", 20, first=10, prompt_rows=CHUNK)]
    decoded = prompts = 0
    for _ in range(200):
        turns = share.turns(demands)
        decoded += sum(state not in turns.left_out for state in demands[1].decoding)
        prompts += turns.prompt_rows["heavy"]
    assert abs(decoded - prompts) <= 16
    assert decoded + prompts >= 200 * 7


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, CHUNK), st.sampled_from([0.01, 0.5, 1.0, 3.0, 100.0])),
             min_size=2, max_size=5),
    st.floats(0, 50),
)  # fmt: skip
@example([(0, 1, 0.01), (0, 1, 0.5)], 0.0)  # one row for two, and neither has saved up a whole one
@example([(1, 0, 0.01), (1, 1, 0.5)], 0.0)
def test_everybody_gets_on_and_no_pass_is_empty(tenants: list[tuple[int, int, float]], base: float) -> None:
    share = passes(base)
    demands = [
        decoding(str(i), count, first=100 * i, weight=weight, prompt_rows=rows)
        for i, (count, rows, weight) in enumerate(tenants)
        if count or rows
    ]
    if len(demands) < 2:
        return
    total = {demand.tenant.name: 0 for demand in demands}
    for _ in range(40):
        rows = rows_of(share, demands)
        for name, count in rows.items():
            total[name] += count
    assert sum(total.values()) >= 40
    weights = sum(demand.tenant.weight for demand in demands)
    for demand in demands:
        if demand.tenant.weight / weights > 0.1:
            assert total[demand.tenant.name] > 0


@given(
    st.lists(st.tuples(st.integers(1, 8), st.integers(0, 200), st.sampled_from([0.5, 1.0, 3.0])),
             min_size=2, max_size=5),
    st.integers(0, 512),
)  # fmt: skip
def test_nodes_keep_to_the_room_and_the_bound(tenants: list[tuple[int, int, float]], room: int) -> None:
    share = passes()
    present = [Load(weight, requests, 0) for requests, _, weight in tenants]
    wanted = [nodes for _, nodes, _ in tenants]
    allowed = share.nodes(present, wanted, room)
    requests = sum(load.requests for load in present)
    weights = sum(load.weight for load in present)
    fair = min(
        min(requests + sum(wanted), -(-(load.requests + nodes) * weights // load.weight))
        for load, nodes in zip(present, wanted, strict=True)
    )
    if allowed is None:
        assert sum(wanted) <= room
        assert requests + sum(wanted) <= SLOWDOWN * fair + 1
        return
    assert all(0 <= each <= nodes for each, nodes in zip(allowed, wanted, strict=True))
    assert sum(allowed) <= room
    assert requests + sum(allowed) <= max(requests, SLOWDOWN * fair + 1)


def test_alike_trees_are_not_cut() -> None:
    assert passes().nodes([Load(1.0, 1, 0)] * 3, [63] * 3, 512) is None
    assert passes().nodes([Load(1.0, 1, 0)] * 3, [63] * 3, 60) == [20] * 3


def test_waits_for_trees_hold_back_those_who_want_them_for_a_while() -> None:
    share = passes(base=10)
    plain, eager = decoding("plain", 1), decoding("eager", 2, first=10)
    for state in eager.decoding:
        state.draft.awaiting_tree = True
    assert share.turns([plain, eager]) is ALL
    share.observe_wait(0.012)
    held = [share.turns([plain, eager]).left_out for _ in range(6)]
    assert held[0] == set(eager.decoding)
    assert not held[-1]
    share.observe_wait(1e6)
    held = [share.turns([plain, eager]).left_out for _ in range(MOST_HELD_BACK + 1)]
    assert all(held[:-1])
    assert not held[-1]
    for state in plain.decoding:
        state.draft.awaiting_tree = True
    assert share.turns([plain, eager]) is ALL


def test_what_is_owed_for_waits_is_bounded_and_forgotten_by_one_alone() -> None:
    share = passes()
    demands = [decoding("waits", 1), decoding("plain", 1, first=10)]
    demands[0].decoding[0].draft.awaiting_tree = True
    for _ in range(1000):
        share.observe_wait(0.05)
        share.turns(demands)
    held = 0
    while share.turns(demands).left_out and held < 1000:
        held += 1
    assert held <= MOST_HELD_BACK
    share.observe_wait(10.0)
    share.forget()
    assert not share.turns(demands).left_out
