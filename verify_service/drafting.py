"""How drafted trees enter a step, and how drafters learn what became of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from slipstream_kernels.token_tree import TokenTree
from verify_service.engine_config import EngineConfig
from verify_service.kv_memory import KVMemory
from verify_service.request import FinishReason, RequestKey
from verify_service.request_state import RequestState
from verify_service.scheduler import ScheduledRows
from verify_service.tree_source import Committed, Opening, TreeSource
from verify_service.verifier import cut

_log = logging.getLogger(__name__)


class Drafting:
    """Asks a tree source for trees within budget and memory. Whatever the source does, the step goes on."""

    def __init__(self, trees: TreeSource, memory: KVMemory, config: EngineConfig) -> None:
        self._trees = trees
        self._memory = memory
        self._step_nodes = config.step_nodes

    def begin(self, state: RequestState) -> None:
        """Announce a request that starts with a proposer."""
        request = state.request
        try:
            self._trees.begin(
                Opening(
                    key=state.key,
                    proposer=state.proposer,
                    token_ids=tuple(state.tokens),
                    prompt_length=state.prompt_length,
                    sampling=state.sampling,
                    choice_index=request.choice_index,
                    tenant=request.tenant,
                    adapter_id=request.adapter_id,
                    cached_length=state.computed,
                )
            )
        except Exception:  # noqa: BLE001 - a source that fails may cost speed and nothing else
            _log.exception("the tree source failed to begin a request, which decodes plainly")
            state.proposer = ""

    def attach_trees(self, items: Sequence[ScheduledRows]) -> None:
        """Give each item whose request awaits a tree the one that arrived, cut to what fits into free pages."""
        awaiting = [item for item in items if item.state.wants_tree and item.decides]
        if not awaiting:
            return
        for item, tree in zip(awaiting, self._collect([item.state.key for item in awaiting]), strict=True):
            state = item.state
            state.wants_tree = False
            if tree is None or not len(tree):
                continue
            length, depth = len(state.tokens), tree.depth
            allowed = min(depth, state.depth_left)
            allowed = min(allowed, self._memory.grow_up_to(state, length + allowed) - length)
            fits = allowed == depth and len(tree) < state.max_nodes
            item.tree = tree if fits else cut(tree, max_nodes=state.max_nodes, max_depth=allowed)

    def next_budget(self, state: RequestState, running: int) -> tuple[int, int]:
        """Rows (root included) and depth of the next tree of a request among `running`; 1 row asks for none."""
        depth = state.depth_left
        nodes = min(state.max_nodes, 1 + self._step_nodes // max(1, running))
        return (nodes, depth) if depth > 0 else (1, 0)

    def commit(self, commits: Sequence[Committed]) -> None:
        """Report a step's tokens."""
        if commits:
            try:
                self._trees.commit(commits)
            except Exception:  # noqa: BLE001 - a source that fails may cost speed and nothing else
                _log.exception("the tree source failed to take a step's tokens")

    def end(self, key: RequestKey, reason: FinishReason) -> None:
        """Report the end of a request that began with a proposer."""
        try:
            self._trees.end(key, reason)
        except Exception:  # noqa: BLE001 - a source that fails may cost speed and nothing else
            _log.exception("the tree source failed to end a request")

    def _collect(self, keys: list[RequestKey]) -> Sequence[TokenTree | None]:
        try:
            return self._trees.collect(keys)
        except Exception:  # noqa: BLE001 - a source that fails may cost speed and nothing else
            _log.exception("the tree source failed to hand over trees, the step decodes plainly")
            return [None] * len(keys)
