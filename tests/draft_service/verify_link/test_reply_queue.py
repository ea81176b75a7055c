"""What is dropped when verify does not read, and what never is."""

from __future__ import annotations

import asyncio

from draft_service.protocol.records import EMPTY_TREE
from draft_service.verify_link.reply_queue import ReplyQueue
from slipstream_kernels.draft_protocol.records import Nack, Reply, Resume, Stamp, TreeReply


def tree(length: int) -> TreeReply:
    return TreeReply(Stamp(1, 0, 1, length, 0), EMPTY_TREE)


RESUME = Resume(Stamp(1, 1, 1, 5, 0), 3)
NACK = Nack(Stamp(1, 2, 1, 5, 0), "no")


def drained(outbox: ReplyQueue, most: int) -> list[list[Reply]]:
    async def drain() -> list[list[Reply]]:
        return [await outbox.take(most) for _ in range(-(-len(outbox) // most))]

    return asyncio.run(drain())


def test_replies_leave_in_order_and_no_more_than_asked_for() -> None:
    outbox = ReplyQueue(10)
    outbox.put([tree(1), RESUME])
    outbox.put([tree(2)])
    assert drained(outbox, 2) == [[tree(1), RESUME], [tree(2)]]
    assert len(outbox) == 0


def test_only_the_oldest_trees_are_dropped() -> None:
    outbox = ReplyQueue(4)
    outbox.put([tree(1), RESUME, tree(2), NACK])
    outbox.put([tree(3), tree(4)])
    assert drained(outbox, 9) == [[RESUME, NACK, tree(3), tree(4)]]
    outbox.put([RESUME, NACK] * 3)
    outbox.put([tree(5)])
    assert drained(outbox, 9) == [[RESUME, NACK] * 3]


def test_taking_waits_for_a_reply() -> None:
    async def scenario() -> None:
        outbox = ReplyQueue(4)
        taking = asyncio.create_task(outbox.take(4))
        await asyncio.sleep(0)
        assert not taking.done()
        outbox.put([tree(1)])
        assert await taking == [tree(1)]

    asyncio.run(scenario())
