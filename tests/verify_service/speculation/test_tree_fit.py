"""What is prepared for the ends of a step under way becomes a choice of the next one where it fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slipstream_kernels.token_tree import TokenTree
from support.fixed_trees import Listener, decoding
from verify_service.core.acceptance import AcceptedPath
from verify_service.core.draft_source import OutcomeTree
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import RequestKey
from verify_service.core.scheduled_request import OutcomeCandidate, ScheduledRequest
from verify_service.core.step_time_model import StepTimeModel
from verify_service.scheduler.kv_cache_manager import KVCacheManager
from verify_service.speculation.controller import SpeculationController
from verify_service.speculation.goodput import GoodputOptimizer


class Foreseeing(Listener):
    """Has prepared this for whoever asks."""

    def __init__(self, *prepared: OutcomeTree) -> None:
        super().__init__()
        self.prepared = prepared

    def drafts_ahead_only(self, keys: Sequence[RequestKey]) -> bool:
        return True

    def wait_for_outcomes(self, keys: Sequence[RequestKey], seconds: float) -> bool:
        return True

    def take_outcome_trees(self, keys: Sequence[RequestKey]) -> list[Sequence[OutcomeTree]]:
        return [self.prepared] * len(keys)


def follow(
    *prepared: OutcomeTree, tree: TokenTree | None = None, max_tokens: int = 100, pages_left: int = 60, **config: Any
) -> list[ScheduledRequest]:
    """Two items behind steps with `tree`, by what is prepared."""
    settings = EngineConfig(num_pages=64, page_size=4, adaptive=False, **config)
    memory = KVCacheManager(settings, 512)
    trees = Foreseeing(*prepared)
    drafting = SpeculationController(trees, memory, settings, GoodputOptimizer(StepTimeModel([(1, 1, 1e-3)])))
    before = []
    for line in range(2):
        state = decoding(settings, memory, trees, max_tokens)
        state.kv.req_index = line
        before.append(ScheduledRequest(state, 1, tree))
        state.kv.num_computed_tokens, state.num_output_placeholders, state.max_inflight_drafts = (
            before[-1].base,
            1,
            before[-1].max_accepted,
        )
    memory._pool.allocate(60 - pages_left)
    assert drafting.can_launch_ahead(before)
    assert not drafting.wait_for_outcomes(before, None)
    assert drafting.wait_for_outcomes(before, 1.0)
    items = [ScheduledRequest(item.state, 1) for item in before]
    drafting.attach_outcome_trees(items, {item.state: item for item in before})
    for item in items:
        assert item.unresolved
        assert item.max_accepted == max((each.tree.depth for each in item.outcome_trees or ()), default=0)
        assert item.max_rows == 1 + max((len(each.tree) for each in item.outcome_trees or ()), default=0)
    return items


CHAIN = TokenTree.chain([5, 6, 7])


def test_what_is_prepared_becomes_a_choice_where_its_end_may_come() -> None:
    tree = TokenTree((1, 2, 3), (-1, 0, -1))
    item, _ = follow(
        OutcomeTree((1, 2), 9, CHAIN),
        OutcomeTree((3,), 9, CHAIN),
        OutcomeTree((2,), 9, CHAIN),
        OutcomeTree((), 8, CHAIN),
        tree=tree,
    )
    assert item.outcome_trees == (
        OutcomeCandidate(1, 9, CHAIN),
        OutcomeCandidate(2, 9, CHAIN),
        OutcomeCandidate(-1, 8, CHAIN),
    )
    item.resolve(AcceptedPath((0, 1), (1, 2, 9)))
    assert (item.tree, item.first, item.base, item.unresolved) == (CHAIN, 9, 10, False)
    for ending in (AcceptedPath((0,), (1, 9)), AcceptedPath((), (9,))):
        other, _ = follow(OutcomeTree((1, 2), 9, CHAIN), tree=tree)
        other.resolve(ending)
        assert (other.tree, other.first, other.max_rows) == (None, 7 + len(ending.nodes), 4)


def test_choices_are_cut_to_what_can_be_output_after_the_end_they_suppose() -> None:
    prepared = [OutcomeTree(path, 9, CHAIN) for path in ((), (1,), (1, 2))]
    item, _ = follow(*prepared, tree=TokenTree.chain([1, 2]), max_tokens=5)
    assert item.outcome_trees == (
        OutcomeCandidate(-1, 9, CHAIN),
        OutcomeCandidate(0, 9, TokenTree.chain([5, 6])),
        OutcomeCandidate(1, 9, TokenTree.chain([5])),
    )
    item, _ = follow(*prepared, tree=TokenTree.chain([1, 2]), max_tokens=4)
    assert item.outcome_trees == (
        OutcomeCandidate(-1, 9, TokenTree.chain([5, 6])),
        OutcomeCandidate(0, 9, TokenTree.chain([5])),
    )


def test_choices_share_nodes_and_pages() -> None:
    items = follow(OutcomeTree((), 9, CHAIN), OutcomeTree((), 8, TokenTree.chain([5])), step_nodes=4)
    assert [item.max_rows for item in items] == [4, 2]
    state = items[0].state
    assert len(state.kv.pages) * 4 >= 8 + 3
    items = follow(OutcomeTree((), 9, TokenTree.chain(range(12))), pages_left=0)
    assert [item.max_accepted for item in items] == [0, 0]


def test_who_chose_is_asked_for_the_next_trees_and_told_what_was_taken() -> None:
    trees = Foreseeing(OutcomeTree((), 9, CHAIN))
    config = EngineConfig(num_pages=64, page_size=4, adaptive=False)
    memory = KVCacheManager(config, 512)
    drafting = SpeculationController(trees, memory, config, GoodputOptimizer(StepTimeModel([(1, 1, 1e-3)])))
    state = decoding(config, memory, trees)
    before = ScheduledRequest(state, 1)
    state.kv.num_computed_tokens, state.num_output_placeholders = before.base, 1
    item = ScheduledRequest(state, 1)
    drafting.attach_outcome_trees([item], {state: before})
    item.resolve(AcceptedPath((), (9,)))
    drafting.send_commits([(state, (9,))], 1, under_way={state: item})
    assert (trees.told[-1].tree, trees.told[-1].max_nodes, state.draft.awaiting_tree) == (CHAIN, 64, False)
