"""The speculation cache: no more trees than agreed, none after they were taken, one for the outcome that came."""

from __future__ import annotations

from slipstream_kernels.draft_protocol.records import ParentNode, Stamp, TreeReply
from slipstream_kernels.token_tree import TokenTree
from verify_service.draft_link.records import NO_NODE
from verify_service.draft_link.slots.speculation_cache import SpeculationCache


def tree_for(base_length: int, root_token: int, parent: ParentNode = NO_NODE) -> TreeReply:
    stamp = Stamp(epoch=1, slot=0, generation=1, base_length=base_length, root_token=root_token)
    return TreeReply(stamp, TokenTree.chain([root_token + 1]), tree_id=base_length, parent=parent)


def test_one_tree_an_outcome_and_as_many_as_agreed() -> None:
    cache = SpeculationCache(capacity=1)
    assert cache.accepts(tree_for(5, 7))
    cache.put(tree_for(5, 7))
    assert not cache.has_room
    assert not cache.accepts(tree_for(5, 8))
    assert cache.accepts(tree_for(5, 7)), "it takes its own place"
    assert not SpeculationCache().accepts(tree_for(5, 7)), "in lockstep nothing is kept"


def test_the_outcome_is_told_by_length_token_and_accepted_node() -> None:
    cache = SpeculationCache(capacity=3)
    accepted = ParentNode(tree_id=4, node=0)
    for reply in (tree_for(5, 7), tree_for(6, 7), tree_for(6, 7, accepted)):
        cache.put(reply)
    cache.last_outcome = accepted
    assert cache.advance(6, 7, had_tree=False) == tree_for(6, 7, accepted)
    assert cache.kept_up
    assert cache.advance(7, 7, had_tree=False) is None, "one step uses all of them up"
    assert not cache.kept_up
    cache.advance(8, 7, had_tree=True)
    assert cache.kept_up, "it had a tree in time"


def test_nothing_is_added_between_taking_and_the_next_commit() -> None:
    cache = SpeculationCache(capacity=2)
    cache.put(tree_for(5, 7))
    assert list(cache.take().values()) == [tree_for(5, 7)]
    assert not cache.accepts(tree_for(5, 8))
    cache.advance(5, 7, had_tree=False)
    assert cache.accepts(tree_for(6, 8))
    cache.put(tree_for(6, 8))
    cache.last_outcome = ParentNode(3, 1)
    cache.clear()
    assert (cache.trees, cache.last_outcome, cache.kept_up) == ({}, NO_NODE, False)
