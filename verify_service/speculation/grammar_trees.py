"""Trees of requests with a grammar: what is forced is drafted, with or without drafters; what is illegal is pruned."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from slipstream_kernels.device_tree import DeviceTree
from slipstream_kernels.token_tree import TokenTree
from verify_service.core.request_state import RequestState
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.grammar.drafting import forced_tree, legal_part
from verify_service.grammar.forced_texts import GRAMMAR
from verify_service.grammar.matcher import GrammarFailure
from verify_service.grammar.together import Together
from verify_service.model_runner.device_trees import read_tree
from verify_service.scheduler.kv_cache_manager import KVCacheManager
from verify_service.scheduler.pass_share import PassShare
from verify_service.scheduler.tree_share import cut_trees
from verify_service.speculation.acceptance_model import ProposedTree
from verify_service.speculation.node_selection import NodeSelector
from verify_service.speculation.tree_fit import fit_tree

_log = logging.getLogger(__name__)


class GrammarTrees:
    """Prunes drafted trees, and drafts forced text where that is longer than what was drafted."""

    def __init__(self, memory: KVCacheManager, passes: PassShare, selector: NodeSelector, step_nodes: int) -> None:
        self._memory = memory
        self._passes = passes
        self._selector = selector
        self._step_nodes = step_nodes
        self._together = Together.beside()
        self.seconds = 0.0
        """What all of it has taken, of the loop's thread."""

    def legal(self, state: RequestState, tree: TokenTree | None) -> TokenTree | None:
        """Return what of a request's tree can be output at all; the whole tree of one without a grammar."""
        grammar = state.grammar
        if grammar is None or tree is None:
            return tree
        if isinstance(tree, DeviceTree):
            tree = read_tree(tree)
        began = time.perf_counter()
        legal = legal_part(grammar, tree) if tree is not None and len(tree) and _catch_up(state) else None
        self.seconds += time.perf_counter() - began
        return legal

    def attach(self, items: Sequence[ScheduledRequest]) -> None:
        """Give items whose text is forced a tree of it, cut to what fits and pays, unless a drafter's is as deep."""
        held = [item for item in items if _may_draft(item.state)]
        if not held:
            return
        began = time.perf_counter()
        self._together.follow([behind for item in held if (behind := item.state.unfollowed) is not None])
        forced = [(item, tree) for item in held if (tree := self._forced(item)) is not None]
        if forced:
            self._attach(items, forced)
        self.seconds += time.perf_counter() - began

    def _attach(self, items: Sequence[ScheduledRequest], forced: Sequence[tuple[ScheduledRequest, TokenTree]]) -> None:
        free = [(item, tree) for item, tree in forced if item.state.draft.adaptive]
        trees = [(item, tree) for item, tree in forced if not item.state.draft.adaptive]
        if free:
            proposed = [proposed_forced(item.state, tree) for item, tree in free]
            tokens = sum(item.decides for item in items)
            rows = sum(item.count - 1 + item.num_rows for item in items)
            parts = self._selector.choose(proposed, requests=len(items), rows=rows, tokens=tokens, waited=0.0)
            trees += [(item, part) for (item, _), part in zip(free, parts, strict=True) if part is not None]
        room = self._step_nodes - sum(item.num_rows - 1 for item in items)
        for item, tree in cut_trees(self._passes, trees, items, room):
            room += item.num_rows - 1
            item.tree = fit_tree(self._memory, item, tree, room) or item.tree
            room -= item.num_rows - 1

    def _forced(self, item: ScheduledRequest) -> TokenTree | None:
        state, grammar = item.state, item.state.grammar
        if grammar is None or not item.decides or item.count != 1:
            return None
        if not _catch_up(state) or isinstance(item.tree, DeviceTree):
            return None
        tree = forced_tree(grammar, min(state.draft.max_nodes - 1, self._step_nodes), state.depth_left)
        return tree if tree is not None and (item.tree is None or tree.depth > item.tree.depth) else None


def proposed_forced(state: RequestState, tree: TokenTree) -> ProposedTree:
    """Return a tree of forced text with what its acceptance is estimated by, apart from that of drafters."""
    return ProposedTree((GRAMMAR, state.parameters.sampling.temperature > 0), tree)


def _may_draft(state: RequestState) -> bool:
    return state.grammar is not None and state.request.speculation.enabled is not False


def _catch_up(state: RequestState) -> bool:
    """Bring a request's grammar to its output; return whether it can be followed that far."""
    try:
        state.follow_output()
    except GrammarFailure:
        return False  # told when the step is decided
    except Exception:  # noqa: BLE001 - a step is for other requests, too
        _log.exception("a grammar cannot follow its request's output")
        return False
    return True
