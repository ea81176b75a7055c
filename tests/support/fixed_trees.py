"""A tree source without a mind of its own, and a request that decodes and wants a tree of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from slipstream_kernels.token_tree import TokenTree
from support.verify_loop import ScriptedTrees, admitted
from verify_service.core.draft_source import Committed
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import RequestKey, SamplingParams
from verify_service.core.request_state import RequestState
from verify_service.scheduler.kv_cache_manager import KVCacheManager


class Fixed(ScriptedTrees):
    """Always the same tree, whatever was asked for."""

    def __init__(self, tree: TokenTree | None) -> None:
        super().__init__()
        self.tree = tree
        self.asked: list[RequestKey] = []

    def commit(self, commits: Sequence[Committed]) -> Collection[RequestKey]:
        return ()

    def collect(self, wanted: list[RequestKey]) -> list[TokenTree | None]:  # type: ignore[override]  # as called here
        self.asked.extend(wanted)
        return [self.tree] * len(wanted)


class Listener(Fixed):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__(None)
        self.told: list[Committed] = []

    def commit(self, commits: Sequence[Committed]) -> Collection[RequestKey]:
        self.told.extend(commits)
        return ()


def decoding(config: EngineConfig, memory: KVCacheManager, trees: Fixed, max_tokens: int = 100) -> RequestState:
    params = SamplingParams(seed=1, max_tokens=max_tokens)
    state = admitted(config, range(10, 17), sampling=params, trees=trees)
    state.kv.req_index = 0
    memory.begin(state)
    state.kv.num_computed_tokens = len(state.tokens) - 1
    state.draft.awaiting_tree = True
    return state
