"""Slots: reuse grows the generation, moves drop the tree, stale stamps find nothing."""

from __future__ import annotations

from slipstream_kernels.token_tree import TokenTree
from verify_service.draft_records import Offer
from verify_service.request import RequestKey
from verify_service.slots import SlotTable
from verify_service.tally import Tally

OFFER = Offer("p", max_nodes=8, max_depth=4)


def test_lowest_free_slot_first_and_none_when_full() -> None:
    table = SlotTable(9, 2)
    first, second = table.take(), table.take()
    assert first is not None
    assert second is not None
    assert (first.index, second.index, table.take()) == (0, 1, None)
    table.release(second)
    table.release(first)
    assert table.take() is first


def test_reuse_makes_old_stamps_stale() -> None:
    table = SlotTable(9, 1)
    slot = table.take()
    assert slot is not None
    slot.open(RequestKey(1, 1), Tally(), caught_up=True)
    slot.stand_at(5, 3, 64, 63, OFFER)
    old = slot.stamp
    assert table.matching(old) is slot
    table.release(slot)
    assert table.matching(old) is None
    slot = table.take()
    assert slot is not None
    slot.open(RequestKey(1, 2), Tally(), caught_up=True)
    assert table.matching(old) is None
    assert slot.stamp.generation == old.generation + 1
    for wrong in (slot.stamp._replace(epoch=8), slot.stamp._replace(slot=1), slot.stamp._replace(slot=2**32)):
        assert table.matching(wrong) is None


def test_moving_on_drops_the_tree_and_cuts_the_budget_to_the_offer() -> None:
    slot = SlotTable(9, 1).take()
    assert slot is not None
    slot.open(RequestKey(1, 1), Tally(), caught_up=True)
    slot.fed = True
    slot.stand_at(5, 3, 64, 63, OFFER)
    assert (slot.max_nodes, slot.max_depth, slot.awaited) == (8, 4, True)
    slot.tree = TokenTree.chain([1])
    assert not slot.awaited
    slot.stand_at(6, 1, 1, 0, OFFER)
    assert slot.tree is None
    assert not slot.awaited
