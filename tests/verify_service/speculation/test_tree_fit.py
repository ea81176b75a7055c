"""Trees are cut to their request's budget and output, the pages that are free, and the nodes left of the step."""

from __future__ import annotations

import pytest

from slipstream_kernels.token_tree import TokenTree
from support.fixed_trees import Listener, decoding
from verify_service.core.engine_config import EngineConfig
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.scheduler.kv_cache_manager import KVCacheManager
from verify_service.speculation.tree_fit import fit_tree

CHAIN = TokenTree.chain([5, 6, 7])


def fitted(tree: TokenTree, *, room: int = 64, max_tokens: int = 100, pages_left: int = 60) -> TokenTree | None:
    """What fits a request of 7 tokens, on pages of 4."""
    settings = EngineConfig(num_pages=64, page_size=4, max_nodes=16)
    memory = KVCacheManager(settings, 512)
    item = ScheduledRequest(decoding(settings, memory, Listener(), max_tokens), 1)
    memory._pool.allocate(62 - pages_left)
    return fit_tree(memory, item, tree, room)


def test_a_tree_that_fits_stays_as_it_is() -> None:
    assert fitted(CHAIN) is CHAIN


@pytest.mark.parametrize(
    ("limits", "levels"),
    [({"room": 2}, 2), ({"room": 0}, 0), ({"max_tokens": 3}, 2), ({"max_tokens": 1}, 0), ({"pages_left": 0}, 1)],
)
def test_a_tree_is_cut_to_what_there_is(limits: dict[str, int], levels: int) -> None:
    assert fitted(CHAIN, **limits) == (TokenTree.chain([5, 6, 7][:levels]) if levels else None)


def test_a_tree_is_cut_to_the_request_s_budget() -> None:
    cut = fitted(TokenTree(tuple(range(20)), (-1,) * 20))
    assert cut is not None
    assert len(cut) == 15
