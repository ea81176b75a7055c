"""The queue to a drafter is bounded and keeps order; gaps follow what was queued before them."""

from __future__ import annotations

from slipstream.generation_types import FinishReason
from slipstream_kernels.draft_protocol.records import Commit, Gap, Stamp
from verify_service.draft_link.records import Close
from verify_service.draft_link.send_queue import RECORD_COST, SendQueue


def stamp(slot: int = 0, generation: int = 1) -> Stamp:
    return Stamp(1, slot, generation, 5, 7)


def commit(tokens: int, slot: int = 0) -> Commit:
    return Commit(stamp(slot), (1,) * tokens, 4, 3)


def test_batches_come_out_in_order_and_whole() -> None:
    outbox = SendQueue(1000)
    assert outbox.put((commit(1), commit(2)))
    assert outbox.put((commit(3),))
    assert [len(record.token_ids) for record in outbox.take()] == [1, 2]
    assert [len(record.token_ids) for record in outbox.take()] == [3]
    assert outbox.take() == ()


def test_a_full_queue_refuses_the_whole_batch_and_recovers() -> None:
    outbox = SendQueue(2 * (RECORD_COST + 10))
    assert outbox.put((commit(10),))
    assert outbox.put((commit(10),))
    assert not outbox.put((commit(0),))
    outbox.take()
    assert outbox.put((commit(0),))


def test_an_empty_queue_takes_a_record_beyond_the_limit() -> None:
    outbox = SendQueue(10)
    assert outbox.put((commit(100),))
    assert not outbox.put((commit(1),))


def test_gaps_come_last_once_a_slot_with_the_sum_of_the_losses() -> None:
    outbox = SendQueue(100)
    outbox.put((commit(1),))
    outbox.put_gap(Gap(stamp(3), 1))
    outbox.put_gap(Gap(stamp(3), 1))
    outbox.put_gap(Gap(stamp(4, generation=1), 5))
    outbox.put_gap(Gap(stamp(4, generation=2), 1))
    outbox.put_always(Close(stamp(), FinishReason.STOP))
    assert outbox.has_gap(3)
    assert isinstance(outbox.take()[0], Commit)
    assert isinstance(outbox.take()[0], Close)
    assert outbox.take() == (Gap(stamp(3), 2), Gap(stamp(4, generation=2), 1))
    assert outbox.take() == ()


def test_a_forgotten_gap_is_not_sent() -> None:
    outbox = SendQueue(100)
    outbox.put_gap(Gap(stamp(3), 1))
    outbox.forget_gap(3)
    assert outbox.take() == ()
