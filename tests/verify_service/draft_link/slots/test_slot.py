"""Slots: reuse grows the generation, moves drop the tree, stale stamps find nothing."""

from __future__ import annotations

from slipstream_kernels.draft_protocol.records import TreeReply
from slipstream_kernels.token_tree import TokenTree
from verify_service.core.request import RequestKey
from verify_service.draft_link.records import Offer
from verify_service.draft_link.slots.draft_stats import DraftStats
from verify_service.draft_link.slots.slot import SlotTable

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
