"""What is prepared for the ends of a step under way becomes a choice of the next one where it fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slipstream_kernels.token_tree import TokenTree
from support.fixed_trees import Listener, decoding
from verify_service.core.acceptance import Walk
from verify_service.core.draft_source import Prepared
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import RequestKey
from verify_service.core.scheduled_request import Choice, ScheduledRows
from verify_service.core.step_time_model import PassCosts
from verify_service.scheduler.kv_cache_manager import KVMemory
from verify_service.speculation.controller import Drafting
from verify_service.speculation.goodput import NodeBudget


class Foreseeing(Listener):
    """Has prepared this for whoever asks."""

    def __init__(self, *prepared: Prepared) -> None:
        super().__init__()
        self.prepared = prepared

    def foresees(self, keys: Sequence[RequestKey]) -> bool:
        return True

    def await_prepared(self, keys: Sequence[RequestKey], seconds: float) -> bool:
        return True

    def take_prepared(self, keys: Sequence[RequestKey]) -> list[Sequence[Prepared]]:
        return [self.prepared] * len(keys)


def follow(
    *prepared: Prepared, tree: TokenTree | None = None, max_tokens: int = 100, pages_left: int = 60, **config: Any
) -> list[ScheduledRows]:
    """Two items behind steps with `tree`, by what is prepared."""
    settings = EngineConfig(num_pages=64, page_size=4, adaptive=False, **config)
    memory = KVMemory(settings, 512)
    trees = Foreseeing(*prepared)
    drafting = Drafting(trees, memory, settings, NodeBudget(PassCosts([(1, 1, 1e-3)])), trees)
    before = []
    for line in range(2):
        state = decoding(settings, memory, trees, max_tokens)
        state.line = line
        before.append(ScheduledRows(state, 1, tree))
        state.computed, state.pending, state.spread = before[-1].base, 1, before[-1].reach
    memory._pool.allocate(60 - pages_left)
    assert drafting.needs_no_wait(before)
    assert not drafting.await_prepared(before, None)
    assert drafting.await_prepared(before, 1.0)
    items = [ScheduledRows(item.state, 1) for item in before]
    drafting.attach_choices(items, {item.state: item for item in before})
    for item in items:
        assert item.unsettled
        assert item.reach == max((each.tree.depth for each in item.choices or ()), default=0)
        assert item.room == 1 + max((len(each.tree) for each in item.choices or ()), default=0)
    return items


CHAIN = TokenTree.chain([5, 6, 7])


def test_what_is_prepared_becomes_a_choice_where_its_end_may_come() -> None:
    tree = TokenTree((1, 2, 3), (-1, 0, -1))
    item, _ = follow(
        Prepared((1, 2), 9, CHAIN),
        Prepared((3,), 9, CHAIN),
        Prepared((2,), 9, CHAIN),
        Prepared((), 8, CHAIN),
        tree=tree,
    )
    assert item.choices == (Choice(1, 9, CHAIN), Choice(2, 9, CHAIN), Choice(-1, 8, CHAIN))
    item.settle(Walk((0, 1), (1, 2, 9)))
    assert (item.tree, item.first, item.base, item.unsettled) == (CHAIN, 9, 10, False)
    for ending in (Walk((0,), (1, 9)), Walk((), (9,))):
        other, _ = follow(Prepared((1, 2), 9, CHAIN), tree=tree)
        other.settle(ending)
        assert (other.tree, other.first, other.room) == (None, 7 + len(ending.nodes), 4)


def test_choices_are_cut_to_what_can_be_output_after_the_end_they_suppose() -> None:
    prepared = [Prepared(path, 9, CHAIN) for path in ((), (1,), (1, 2))]
    item, _ = follow(*prepared, tree=TokenTree.chain([1, 2]), max_tokens=5)
    assert item.choices == (
        Choice(-1, 9, CHAIN),
        Choice(0, 9, TokenTree.chain([5, 6])),
        Choice(1, 9, TokenTree.chain([5])),
    )
    item, _ = follow(*prepared, tree=TokenTree.chain([1, 2]), max_tokens=4)
    assert item.choices == (Choice(-1, 9, TokenTree.chain([5, 6])), Choice(0, 9, TokenTree.chain([5])))


def test_choices_share_nodes_and_pages() -> None:
    items = follow(Prepared((), 9, CHAIN), Prepared((), 8, TokenTree.chain([5])), step_nodes=4)
    assert [item.room for item in items] == [4, 2]
    state = items[0].state
    assert len(state.pages) * 4 >= 8 + 3
    items = follow(Prepared((), 9, TokenTree.chain(range(12))), pages_left=0)
    assert [item.reach for item in items] == [0, 0]


def test_who_chose_is_asked_for_the_next_trees_and_told_what_was_taken() -> None:
    trees = Foreseeing(Prepared((), 9, CHAIN))
    config = EngineConfig(num_pages=64, page_size=4, adaptive=False)
    memory = KVMemory(config, 512)
    drafting = Drafting(trees, memory, config, NodeBudget(PassCosts([(1, 1, 1e-3)])), trees)
    state = decoding(config, memory, trees)
    before = ScheduledRows(state, 1)
    state.computed, state.pending = before.base, 1
    item = ScheduledRows(state, 1)
    drafting.attach_choices([item], {state: before})
    item.settle(Walk((), (9,)))
    drafting.report([(state, (9,))], 1, under_way={state: item})
    assert (trees.told[-1].tree, trees.told[-1].max_nodes, state.wants_tree) == (CHAIN, 64, False)
