"""Slots: reuse grows the generation, moves drop the tree, stale stamps find nothing."""

from __future__ import annotations

import pytest

from slipstream_kernels.draft_protocol.records import ParentNode, TreeReply
from slipstream_kernels.token_tree import TokenTree
from verify_service.core.request import RequestKey
from verify_service.draft_link.records import NO_NODE, Offer
from verify_service.draft_link.slots.draft_stats import DraftStats
from verify_service.draft_link.slots.slot import Slot, SlotTable

OFFER = Offer("p", max_nodes=8, max_depth=4)


def test_lowest_free_slot_first_and_none_when_full() -> None:
    table = SlotTable(9, 2)
    first, second = table.take(), table.take()
    assert first is not None
    assert second is not None
    assert (first.index, second.index, table.take()) == (0, 1, None)
    table.release(second)
    assert table.busy
    table.release(first)
    assert not table.busy
    assert table.take() is first


def test_reuse_makes_old_stamps_stale() -> None:
    table = SlotTable(9, 1)
    slot = table.take()
    assert slot is not None
    slot.open(RequestKey(1, 1), DraftStats(), caught_up=True)
    slot.advance_to(5, 3, 64, 63, OFFER)
    old = slot.stamp
    assert table.matching(old) is slot
    table.release(slot)
    assert table.matching(old) is None
    slot = table.take()
    assert slot is not None
    slot.open(RequestKey(1, 2), DraftStats(), caught_up=True)
    assert table.matching(old) is None
    assert slot.stamp.generation == old.generation + 1
    for wrong in (slot.stamp._replace(epoch=8), slot.stamp._replace(slot=1), slot.stamp._replace(slot=2**32)):
        assert table.matching(wrong) is None


def test_moving_on_drops_the_tree_and_cuts_the_budget_to_the_offer() -> None:
    slot = SlotTable(9, 1).take()
    assert slot is not None
    slot.open(RequestKey(1, 1), DraftStats(), caught_up=True)
    slot.session.in_sync = True
    slot.advance_to(5, 3, 64, 63, OFFER)
    assert (slot.max_nodes, slot.max_depth, slot.awaited) == (8, 4, True)
    slot.tree = TokenTree.chain([1])
    assert not slot.awaited
    slot.advance_to(6, 1, 1, 0, OFFER)
    assert slot.tree is None
    assert not slot.awaited


def ahead_slot(max_ahead: int = 3) -> Slot:
    """A slot at 5 tokens whose step verifies tree 70: 10 -> 11, or 12."""
    slot = SlotTable(9, 1).take()
    assert slot is not None
    slot.open(RequestKey(1, 1), DraftStats(), caught_up=True, max_ahead=max_ahead, waits=False)
    slot.session.in_sync = True
    slot.advance_to(5, 3, 8, 4, OFFER)
    slot.set_tree(TreeReply(slot.stamp, TokenTree((10, 11, 12), (-1, 0, -1)), tree_id=70))
    assert slot.put_in_flight() is not None
    return slot


def ahead(slot: Slot, more: int, bonus: int, tree_id: int, node: int, first: int = 20) -> TreeReply:
    stamp = slot.stamp._replace(base_length=slot.stamp.base_length + more, root_token=bonus)
    parent = NO_NODE if node < 0 else ParentNode(tree_id, node)
    return TreeReply(stamp, TokenTree.chain([first, first + 1, first + 2]), tree_id=100 + first, parent=parent)


def test_the_tree_ahead_for_what_has_happened_is_taken() -> None:
    slot = ahead_slot()
    for reply in (ahead(slot, 2, 6, 70, 0, 20), ahead(slot, 2, 6, 70, 2, 30), ahead(slot, 1, 6, 70, -1, 40)):
        assert slot.may_cache(reply)
        slot.cache.put(reply)
    slot.end_step((12, 6))
    slot.advance_to(7, 6, 3, 4, OFFER)
    assert slot.tree == TokenTree.chain([30, 31]), "cut to two nodes beside the root"
    assert (slot.tree_id, slot.from_cache, slot.cache.trees) == (130, True, {})
    slot.count_hits()
    assert (slot.stats.ahead_hits, slot.stats.ahead_misses) == (1, 0)


def test_one_for_another_path_to_the_same_stamp_is_not() -> None:
    slot = ahead_slot()
    slot.cache.put(ahead(slot, 2, 6, 70, 0))
    late = ahead(slot, 2, 6, 70, 2, 30)
    slot.end_step((12, 6))
    slot.advance_to(7, 6, 8, 4, OFFER)
    assert slot.tree is None
    assert not slot.awaited, "who drafts ahead is not waited for"
    slot.count_hits()
    assert (slot.stats.ahead_hits, slot.stats.ahead_misses) == (0, 1)
    assert not slot.fits(TreeReply(slot.stamp, late.tree, tree_id=1, parent=ParentNode(70, 0)))
    assert not slot.fits(TreeReply(slot.stamp, late.tree, tree_id=1, parent=ParentNode(71, 2)))
    assert slot.fits(late), "it has come after the commit and before the step"


def test_no_more_are_kept_than_agreed_and_none_that_cannot_happen() -> None:
    slot = ahead_slot(max_ahead=2)
    assert not slot.may_cache(ahead(slot, 2, 6, 71, 0)), "no step verifies tree 71"
    assert not slot.may_cache(ahead(slot, 2, 6, 70, -1)), "a step without an accepted node adds one token"
    assert not slot.may_cache(ahead(slot, 0, 6, 70, -1))
    first, second, third = (ahead(slot, 1, bonus, 70, -1) for bonus in (1, 2, 3))
    slot.cache.put(first)
    slot.cache.put(second)
    assert not slot.may_cache(third)
    assert slot.may_cache(first), "it takes its own place"
    lockstep = ahead_slot(max_ahead=0)
    assert not lockstep.may_cache(ahead(lockstep, 1, 6, 70, -1))


def test_a_plain_step_leads_to_what_supposed_no_node() -> None:
    slot = ahead_slot()
    slot.in_flight_tree = None
    slot.cache.put(ahead(slot, 1, 10, 70, -1))
    slot.end_step((10,))
    slot.advance_to(6, 10, 8, 4, OFFER)
    assert slot.tree == TokenTree.chain([20, 21, 22])


def cache_taken() -> Slot:
    """Its step's ends are 10 -> 11 with 6, and 5 without any node; one that cannot come, and two of other lengths."""
    slot = ahead_slot(max_ahead=5)
    wrong = [ahead(slot, 3, 6, 70, 2), ahead(slot, 4, 6, 70, 1), ahead(slot, 2, 6, 70, 9)]
    for reply in (ahead(slot, 3, 6, 70, 1, 30), ahead(slot, 1, 5, 70, -1, 40), *wrong):
        slot.cache.put(reply)
    prepared = slot.take_outcome_trees()
    assert [(each.path, each.token, each.tree.token_ids) for each in prepared] == [
        ((10, 11), 6, (30, 31, 32)),
        ((), 5, (40, 41, 42)),
    ]
    return slot


def test_what_comes_after_the_trees_ahead_were_handed_over_is_late() -> None:
    slot = cache_taken()
    late = ahead(slot, 1, 7, 70, -1)
    assert not slot.may_cache(late)
    assert slot.too_late(late)
    assert not slot.too_late(ahead(slot, 1, 7, 71, 0)), "which no step leads to, late or not"
    slot.end_step((10, 11, 6))
    slot.advance_to(8, 6, 8, 4, OFFER)
    assert slot.may_cache(ahead(slot, 1, 7, 130, -1))


def test_the_step_under_way_has_what_it_was_given_of_the_trees_handed_over() -> None:
    slot = cache_taken()
    slot.end_step((10, 11, 6))
    slot.advance_to(8, 6, 8, 4, OFFER)
    slot.begin_step(TokenTree.chain([30]))
    slot.count_hits()
    assert (slot.tree_id, slot.in_flight_tree, slot.in_flight_tree_id) == (130, TokenTree.chain([30, 31, 32]), 130)
    assert (slot.stats.hits, slot.stats.ahead_hits, slot.stats.ahead_misses) == (1, 1, 0)
    slot.end_step((30, 31))
    assert slot.cache.last_outcome == ParentNode(130, 0)


@pytest.mark.parametrize(("tokens", "tree"), [((10, 11, 6), None), ((10, 4), None), ((10, 4), TokenTree.chain([30]))])
def test_a_step_without_a_tree_or_with_one_that_was_not_handed_over_is_plain(
    tokens: tuple[int, ...], tree: TokenTree | None
) -> None:
    slot = cache_taken()
    slot.end_step(tokens)
    slot.advance_to(5 + len(tokens), tokens[-1], 8, 4, OFFER)
    slot.begin_step(tree)
    slot.count_hits()
    assert (slot.tree_id, slot.in_flight_tree, slot.stats.ahead_hits, slot.stats.ahead_misses) == (0, None, 0, 1)
    assert slot.may_cache(ahead(slot, 1, 7, 0, -1))


def test_of_equal_siblings_the_first_is_the_end_of_a_path() -> None:
    slot = ahead_slot()
    slot.set_tree(TreeReply(slot.stamp, TokenTree((10, 10), (-1, -1)), tree_id=71))
    slot.put_in_flight()
    slot.cache.put(ahead(slot, 2, 6, 71, 1))
    assert slot.take_outcome_trees() == []


def test_a_tree_that_comes_while_its_step_runs_is_late_and_judged_by_what_follows() -> None:
    slot = SlotTable(9, 1).take()
    assert slot is not None
    slot.open(RequestKey(1, 1), DraftStats(), caught_up=True)
    slot.session.in_sync = True
    slot.advance_to(4, 30, 8, 4, OFFER)
    slot.ask(10.0)
    slot.put_in_flight()
    reply = TreeReply(slot.stamp, TokenTree.chain([31, 32]))
    slot.answer(reply, 10.25)
    slot.set_tree(reply)
    slot.end_step([31])
    slot.advance_to(5, 31, 8, 4, OFFER)
    assert (slot.stats.late, slot.stats.answers.usual, slot.stats.mean_accepted) == (1, 0.25, 0.0)
    slot.end_step([32])
    assert slot.stats.mean_accepted > 0.0
    slot.advance_to(6, 32, 8, 4, OFFER)
    slot.match_late_tree(TokenTree.chain([40, 41]), [40, 50])
    assert (slot.stats.late, slot.late_match) == (1, None), "where the text has left it all is known at once"
