"""What a drafter sends is checked here, after it was copied: the stamp first, then the rest."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from slipstream.rpc.errors import InvalidArgumentError
from slipstream_kernels.device_tree import DeviceTree
from slipstream_kernels.draft_protocol.records import Nack, Reply, Resume, TrafficWeight, TreeReply
from slipstream_kernels.token_tree import InvalidTreeError, TokenTree
from verify_service.draft_link.attachment import Attachment, check_share
from verify_service.draft_link.routing.router import DraftRouter
from verify_service.draft_link.slots.slot import Slot

_log = logging.getLogger(__name__)

SHARE_COST = 5
"""Replies that a change of the share counts as, for each running request that has room in its slots: all may move."""


MOST_SOURCES, LONGEST_SOURCE = 8, 64
"""Different proposers that one tree's nodes are counted for, and bytes of a name: clients hear of them at each step."""


class ReplyHandler:
    """Applies replies to slots. The draft link's lock guards it. `stale` counts records dropped for their stamp."""

    __slots__ = ("_clock", "_router", "_vocab_size", "stale")

    def __init__(self, router: DraftRouter, vocab_size: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._router = router
        self._clock = clock
        self._vocab_size = vocab_size
        self.stale = 0

    def apply(self, attachment: Attachment, replies: Sequence[Reply], size: int) -> None:
        """Take in one message of `size` bytes. InvalidArgumentError for a malformed record or one too many."""
        attachment.rate_limiter.consume(len(replies), size)
        resumed: set[int] = set()
        now = self._clock()
        for reply in replies:
            if isinstance(reply, TrafficWeight):
                self._take_share(attachment, reply.share)
                continue
            slot = attachment.slots.matching(reply.stamp)
            if slot is not None and isinstance(reply, TreeReply):
                self._take_tree(attachment, slot, reply, now)
            elif slot is None or (isinstance(reply, Resume) and slot.index in resumed):
                self._count_stale(attachment)
            elif isinstance(reply, Resume):
                resumed.add(slot.index)
                self._router.reopen(slot)
            elif isinstance(reply, Nack):
                _refuse(slot, reply)

    def _count_stale(self, attachment: Attachment) -> None:
        self.stale += 1
        attachment.stale += 1

    def _take_share(self, attachment: Attachment, share: float) -> None:
        check_share(share)
        if share != attachment.share:
            attachment.rate_limiter.consume(SHARE_COST * min(len(self._router.running), attachment.slots.size), 0)
            attachment.share = share
            self._router.rebalance()

    def _take_tree(self, attachment: Attachment, slot: Slot, reply: TreeReply, now: float) -> None:
        session, length = slot.session, reply.stamp.base_length
        session.caught_up = True
        slot.answer(reply, now)
        if length <= slot.handed_length:
            return  # the step had it from the device
        if length <= slot.stamp.base_length:
            session.acked_length = max(session.acked_length, length)
        if reply.stamp != slot.stamp:
            self._count_stale(attachment)
            if slot.too_late(reply):
                slot.stats.late += 1
                self._look_back(slot, reply)
            return
        if reply.sources:
            _check_sources(reply, len(attachment.request.offers))
        try:
            self._check(reply.tree, slot.max_nodes - 1, slot.max_depth)
        except InvalidTreeError as error:
            raise InvalidArgumentError(f"malformed tree: {error}", field="tree") from error
        if not isinstance(reply.tree, DeviceTree):
            reply = _named(reply, attachment)
        slot.set_tree(reply)

    def _look_back(self, slot: Slot, reply: TreeReply) -> None:
        """Learn from a tree that is of no use any more what it would have brought; a malformed one teaches nothing."""
        running = None if slot.key is None else self._router.running.get(slot.key)
        length = reply.stamp.base_length
        if running is None or not reply.tree or isinstance(reply.tree, DeviceTree):
            return
        max_nodes, max_depth = slot.largest
        if 0 < length < len(running.tokens) and running.tokens[length - 1] == reply.stamp.root_token:
            with suppress(InvalidTreeError):
                self._check(reply.tree, max_nodes - 1, max_depth)
                slot.match_late_tree(reply.tree, running.tokens[length:])

    def _check(self, tree: TokenTree, max_nodes: int, max_depth: int) -> None:
        """Raises InvalidTreeError. One whose nodes a device of this process has alone cannot go beyond its bounds."""
        if not isinstance(tree, DeviceTree):
            tree.validate(vocab_size=self._vocab_size, max_nodes=max_nodes, max_depth=max_depth)
        elif tree.most_nodes > max_nodes or tree.most_depth > max_depth:
            raise InvalidTreeError(f"up to {tree.most_nodes} nodes and {tree.most_depth} levels")


def _check_sources(reply: TreeReply, offers: int) -> None:
    """InvalidArgumentError unless each node is counted for one of so many offers."""
    if len(reply.sources) != len(reply.tree):
        raise InvalidArgumentError(f"{len(reply.tree)} token_ids but {len(reply.sources)} sources", field="sources")
    if any(source >= offers for source in reply.sources):
        raise InvalidArgumentError(f"sources must be below {offers}", field="sources")


def _named(reply: TreeReply, attachment: Attachment) -> TreeReply:
    """The tree with the names of the offers that its nodes are counted for, where the drafter says so.

    Those that would make a step's output large are passed over.
    """
    offers, tree = attachment.request.offers, reply.tree
    if not reply.sources and tree.sources is None:
        return reply
    names = {source: offers[source].name for source in reply.sources}
    fits = 0 < len(names) <= MOST_SOURCES and all(len(name.encode()) <= LONGEST_SOURCE for name in names.values())
    sources = tuple(names[source] for source in reply.sources) if fits else None
    return reply if sources == tree.sources else reply._replace(tree=replace(tree, sources=sources))


def _refuse(slot: Slot, nack: Nack) -> None:
    session = slot.session
    if session.nacked:
        return
    session.nacked = True
    if not session.nack_logged:
        session.nack_logged = True
        _log.info("slot %d of epoch %d will get no trees: %r", slot.index, slot.stamp.epoch, nack.reason[:200])
