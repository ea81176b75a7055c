from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from draft_service.proposers.suffix.cache import PIECE, SuffixCache
from draft_service.proposers.suffix.tree import SuffixTree
from tests.draft_service.proposers.suffix.test_tree import edges_of, fill


def respond(cache: SuffixCache, key: tuple[str, str], *responses: list[int]) -> None:
    for response in responses:
        cache.add(key, np.array(response, np.int32))
    while cache.advance():
        pass


def edges(cache: SuffixCache, key: tuple[str, str]) -> dict[tuple[int, ...], int]:
    return edges_of(cache._trees[key].tree)


def built(depth: int, responses: list[list[int]]) -> dict[tuple[int, ...], int]:
    tree = SuffixTree(depth, removable=True)
    fill(tree, responses)
    return edges_of(tree)


@given(
    responses=st.lists(
        st.tuples(st.integers(0, 2), st.lists(st.integers(0, 3), min_size=1, max_size=40)), min_size=1, max_size=25
    ),
    max_requests=st.integers(1, 6),
    max_tokens=st.integers(20, 120),
)
@settings(max_examples=100)
def test_trees_hold_what_was_not_evicted(responses, max_requests, max_tokens) -> None:
    cache = SuffixCache(6, max_requests, max_tokens)
    said: dict[tuple[str, str], list[list[int]]] = {}
    for tenant, response in responses:
        key = (str(tenant), "")
        respond(cache, key, response)
        said.setdefault(key, []).append(response[-max_tokens:])
        kept = {key: len(tree.responses) for key, tree in cache._trees.items()}
        assert cache.requests == sum(kept.values()) <= max_requests
        assert cache.tokens == sum(sum(map(len, said[key][-n:])) for key, n in kept.items()) <= max_tokens
    for key, n in kept.items():
        assert edges(cache, key) == built(6, said[key][-n:])


def test_the_largest_tenant_pays() -> None:
    cache = SuffixCache(8, 100, 300)
    respond(cache, ("quiet", ""), [1] * 40)
    for _ in range(12):
        respond(cache, ("busy", ""), [2] * 50)
    assert {key: tree.tokens for key, tree in cache._trees.items()} == {("quiet", ""): 40, ("busy", ""): 250}


def test_tenants_beyond_the_limit_replace_the_longest_idle() -> None:
    cache = SuffixCache(8, 100, 1000, max_tenants=2)
    for tenant in "abac":
        respond(cache, (tenant, ""), [1, 2, 3], [4, 5])
    assert list(cache._trees) == [("a", ""), ("c", "")]
    assert cache.address(("b", "")) == 0 != cache.address(("a", ""))


def test_adapters_are_apart() -> None:
    cache = SuffixCache(8, 100, 1000)
    respond(cache, ("a", ""), [1, 2, 3])
    respond(cache, ("a", "x"), [4, 5])
    assert edges(cache, ("a", "")) == built(8, [[1, 2, 3]])
    assert edges(cache, ("a", "x")) == built(8, [[4, 5]])


def test_work_comes_in_pieces() -> None:
    cache = SuffixCache(8, 1, 10_000)
    response = np.arange(5 * PIECE, dtype=np.int32)
    cache.add(("a", ""), response)
    pieces = 1
    while cache.advance():
        pieces += 1
    assert pieces == 7
    cache.add(("a", ""), response[: 3 * PIECE])
    while cache.advance():
        pieces += 1
    assert pieces > 7 + 5 + 3


def test_nothing_is_kept_without_room() -> None:
    cache = SuffixCache(8, 0, 1000)
    cache.add(("a", ""), np.array([1, 2], np.int32))
    assert not cache.advance() and cache.address(("a", "")) == 0
    cache = SuffixCache(8, 10, 5)
    respond(cache, ("a", ""), [1, 2, 3, 4, 5, 6, 7])
    assert edges(cache, ("a", "")) == built(8, [[3, 4, 5, 6, 7]])


def test_waiting_responses_are_bounded() -> None:
    cache = SuffixCache(8, 100, 10)
    for _ in range(50):
        cache.add(("a", ""), np.array([1, 2, 3], np.int32))
    assert len(cache._waiting) == 3


def test_room_is_used_again() -> None:
    cache = SuffixCache(8, 4, 10_000)
    for i in range(40):
        respond(cache, ("a", ""), [i] * 60)
    size = cache._trees["a", ""].tree.memory.size
    for i in range(200):
        respond(cache, ("a", ""), [i] * 60)
    assert cache._trees["a", ""].tree.memory.size == size


def test_an_emptied_tree_gives_its_memory_back() -> None:
    cache = SuffixCache(8, 1, 10_000)
    respond(cache, ("a", ""), list(range(5000)))
    tree = cache._trees["a", ""].tree
    before = tree.memory.size
    respond(cache, ("b", ""), [1, 2, 3])
    assert list(cache._trees) == [("b", "")]
    assert tree.memory.size < before / 10 and not cache._leaving
