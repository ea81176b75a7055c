"""The one thread that owns all proposers: takes records, drafts, sends trees.

Every pass takes all records that have arrived, so that the newest state of each slot wins and the sessions of one
proposer are drafted together. A tree whose state was superseded meanwhile is not sent; an empty one stands for it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count
from operator import index
from queue import SimpleQueue
from typing import Protocol

from draft_service.ahead import Foresight
from draft_service.codec import Attachment
from draft_service.device_fault import end_if_device_lost
from draft_service.proposers.base import DraftRequest, Proposer, Target
from draft_service.records import EMPTY_TREE, Close, Gap, Record, Reply, Stamp, TreeReply
from draft_service.sessions import SessionTable, Slot
from slipstream.rpc.errors import FailedPreconditionError
from slipstream_kernels.token_tree import InvalidTreeError, TokenTree

_log = logging.getLogger(__name__)

MAX_LOG_PROB = 1e30
"""Magnitude below which a path's log-probability survives the wire's float32."""

TURN_SECONDS = 0.1
"""How long the worker waits at a feed before it looks elsewhere, should it have missed a poke."""

Send = Callable[[list[Reply]], None]
"""Takes the replies of one pass; called on the worker's thread and must not block."""


class Feed(Protocol):
    """Where the worker picks up records itself. Nothing raises; all but `poke` are called on the worker's thread."""

    def receive(self) -> Sequence[Record]:
        """What has arrived, in order."""
        ...

    def wait(self, seconds: float) -> None:
        """Return when something may have arrived, when poked, or after `seconds`."""
        ...

    def poke(self) -> None:
        """End a wait. For any thread."""
        ...

    def close(self) -> None:
        """Let go of what is held; the attachment is over."""
        ...


@dataclass(slots=True)
class WorkerStats:
    """Counters since the start. Written by the worker, read by anyone."""

    trees_sent: int = 0
    nodes_sent: int = 0
    superseded: int = 0
    failures: int = 0
    ahead_sent: int = 0
    """Trees sent ahead, for the ways in which a verify step might end."""
    sessions: int = 0
    partial: int = 0
    """Sessions that began without older states which their proposer wanted."""


@dataclass(frozen=True, slots=True)
class _Attach:
    attachment: Attachment
    proposers: Sequence[Proposer]
    send: Send
    feed: Feed | None


@dataclass(frozen=True, slots=True)
class _Detach:
    epoch: int


@dataclass(frozen=True, slots=True)
class _Bind:
    target: Target
    done: Future[list[Proposer]]


@dataclass(frozen=True, slots=True)
class _Say:
    reply: Reply


@dataclass(frozen=True, slots=True)
class _Stop:
    pass


_Item = Sequence[Record] | _Attach | _Detach | _Bind | _Say | _Stop


@dataclass(slots=True)
class Worker:
    """Owns the proposers. All public methods may be called from any thread."""

    proposers: Sequence[Proposer]
    stats: WorkerStats = field(default_factory=WorkerStats)
    _inbox: SimpleQueue[_Item] = field(default_factory=SimpleQueue)
    _newest: dict[int, Stamp | None] = field(default_factory=dict)
    _thread: threading.Thread | None = None
    _table: SessionTable | None = None
    _send: Send | None = None
    _feed: Feed | None = None
    _arrived: list[_Item] = field(default_factory=list)
    _vocab_size: int = 0
    _hidden_size: int = 0
    _numbers: count[int] = field(default_factory=lambda: count(1))

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="draft-worker", daemon=True)
        self._thread.start()

    def stop(self, seconds: float | None = None) -> None:
        """Finish the present pass, shut the proposers down and end the thread; waits for that, up to `seconds`."""
        self._post(_Stop())
        if self._thread is not None:
            self._thread.join(seconds)

    def bind(self, target: Target) -> Future[list[Proposer]]:
        """Tell every proposer of the target; the result holds those that fit it."""
        done: Future[list[Proposer]] = Future()
        self._post(_Bind(target, done))
        return done

    def attach(
        self, attachment: Attachment, proposers: Sequence[Proposer], send: Send, feed: Feed | None = None
    ) -> None:
        """Begin an attachment; sessions of an earlier one are closed. `proposers` are those offered, in order.

        Records are handed over by `put`, or picked up from `feed`.
        """
        self._newest = {}
        self._post(_Attach(attachment, proposers, send, feed))

    def detach(self, epoch: int) -> None:
        """End an attachment; its sessions are closed."""
        self._post(_Detach(epoch))

    def say(self, reply: Reply) -> None:
        """Send a reply that answers no record; dropped while nothing is attached."""
        self._post(_Say(reply))

    def put(self, records: Sequence[Record]) -> None:
        """Hand over records in the order of their arrival."""
        self._note(records)
        self._post(records)

    def _run(self) -> None:
        more_work = False
        while True:
            replies: list[Reply] = []
            for item in self._take(wait=not more_work):
                if isinstance(item, _Stop):
                    self._shut_down()
                    return
                replies.extend(self._handle(item))
            if self._table is not None:
                replies.extend(self._draft(self._table))
                self.stats.sessions = len(self._table)
                self.stats.partial += self._table.partial
                self._table.partial = 0
            if replies and self._send is not None:
                self._send(replies)
            if self._table is not None and self._table.max_ahead:
                self._draft_ahead(self._table)
            more_work = self._advance()

    def _take(self, *, wait: bool) -> list[_Item]:
        """All that has arrived; with `wait` at least one item."""
        items, self._arrived = self._arrived, []
        while True:
            items.extend(self._pick_up())
            while not self._inbox.empty():  # which nobody else takes from
                items.append(self._inbox.get_nowait())
            if items or not wait:
                return items
            if self._feed is None:
                items.append(self._inbox.get())
            else:
                self._feed.wait(TURN_SECONDS)

    def _pick_up(self) -> list[_Item]:
        """The records that the feed holds, as one item; none without a feed."""
        records = () if self._feed is None else self._feed.receive()
        self._note(records)
        return [records] if records else []

    def _note(self, records: Sequence[Record]) -> None:
        """Remember the newest state of each slot, so that trees for older ones are not sent."""
        newest = self._newest
        for record in records:
            newest[record.stamp.slot] = None if isinstance(record, Close | Gap) else record.stamp

    def _post(self, item: _Item) -> None:
        self._inbox.put(item)
        feed = self._feed
        if feed is not None:
            feed.poke()

    def _handle(self, item: _Item) -> list[Reply]:
        match item:
            case _Attach(attachment, proposers, send, feed):
                self._leave()
                self._table = SessionTable(
                    attachment.epoch,
                    attachment.num_slots,
                    proposers,
                    self._numbers,
                    self._hidden_size,
                    max_ahead=attachment.max_ahead,
                    waits=attachment.waits,
                )
                self._send, self._feed = send, feed
            case _Detach(epoch):
                if self._table is not None and self._table.epoch == epoch:
                    self._leave()
            case _Bind(target, done):
                self._leave()
                self._vocab_size, self._hidden_size = target.vocab_size, target.hidden_size
                if done.set_running_or_notify_cancel():
                    done.set_result([proposer for proposer in self.proposers if _fits(proposer, target)])
            case _Say(said):
                return [said]
            case _Stop():
                pass
            case records if self._table is not None:
                return [reply for record in records if (reply := self._table.apply(record)) is not None]
            case _:
                pass
        return []

    def _draft(self, table: SessionTable) -> list[Reply]:
        replies: list[Reply] = []
        for proposer, wanted in table.wanted().items():
            trees = self._propose(proposer, [request for _, request in wanted])
            self._look()
            for (slot, _), tree in zip(wanted, trees, strict=True):
                slot.wants_tree = False
                if tree is None:
                    self.stats.failures += 1
                    replies.append(table.refuse(slot, f"proposer {proposer.name} failed"))
                elif self._is_current(slot):
                    self.stats.trees_sent += 1
                    self.stats.nodes_sent += len(tree)
                    tree_id = 0
                    if slot.outlook is not None:
                        tree_id = slot.outlook.tree_id = next(self._numbers)
                        slot.outlook.tree = tree
                    replies.append(TreeReply(slot.stamp, tree, tree_id, sources=table.sources_of(slot, tree)))
                else:
                    # Too late to be of use, yet it tells verify that this slot is drafted for and worth waiting for.
                    self.stats.superseded += 1
                    replies.append(TreeReply(slot.stamp, EMPTY_TREE))
        return replies

    def _draft_ahead(self, table: SessionTable) -> None:
        """Send trees ahead as they are made, for the states that are the newest."""
        foresight = Foresight(table.max_ahead, self._numbers, self._propose, self._is_current, self._look)
        for replies in foresight.prepare(table.slots):
            if replies and self._send is not None:
                self._send(replies)
                self.stats.ahead_sent += len(replies)

    def _look(self) -> None:
        """Take in what the feed holds, to be handled in the next pass."""
        self._arrived.extend(self._pick_up())

    def _propose(self, proposer: Proposer, requests: list[DraftRequest]) -> list[TokenTree | None]:
        """One tree a request, empty where the proposer has no guess, None where it failed."""
        trees = self._attempt(proposer, requests)
        if trees is None and len(requests) > 1:
            # The requests that fail alone lose their trees, not the others.
            return [self._propose(proposer, [request])[0] for request in requests]
        if trees is None:
            return [None]
        return [
            self._checked(proposer, request, EMPTY_TREE if tree is None else tree)
            for request, tree in zip(requests, trees, strict=True)
        ]

    def _attempt(self, proposer: Proposer, requests: list[DraftRequest]) -> list[object] | None:
        try:
            trees: list[object] = list(proposer.propose(requests))
        except Exception:  # noqa: BLE001 (a third party's code)
            _log.exception("proposer %s failed", proposer.name)
            end_if_device_lost()
            return None
        if len(trees) != len(requests):
            _log.error("proposer %s made %d trees for %d requests", proposer.name, len(trees), len(requests))
            return None
        return trees

    def _checked(self, proposer: Proposer, request: DraftRequest, tree: object) -> TokenTree | None:
        """The tree in plain integers and floats, None if it is not one that verify would take."""
        try:
            if not isinstance(tree, TokenTree):
                raise InvalidTreeError(f"{type(tree).__name__} is no TokenTree")
            tree.validate(vocab_size=self._vocab_size, max_nodes=request.max_nodes - 1, max_depth=request.max_depth)
            if not all(-MAX_LOG_PROB < log_prob < MAX_LOG_PROB for log_prob in tree.log_probs or ()):
                raise InvalidTreeError("log_probs must be finite float32 numbers")
            return TokenTree(
                tuple(map(index, tree.token_ids)),
                tuple(map(index, tree.parents)),
                None if tree.log_probs is None else tuple(map(float, tree.log_probs)),
                None if tree.sources is None else tuple(map(str, tree.sources)),
            )
        except Exception as error:  # noqa: BLE001 (a third party's objects may fail in any way)
            _log.error("proposer %s made a malformed tree: %.200s", proposer.name, error)
            return None

    def _is_current(self, slot: Slot) -> bool:
        return self._newest.get(slot.stamp.slot) == slot.stamp

    def _advance(self) -> bool:
        more_work = False
        for proposer in self.proposers:
            try:
                more_work |= proposer.advance()
            except Exception:  # noqa: BLE001 (a third party's code; its sessions fail when they are drafted)
                _log.exception("proposer %s failed in the background", proposer.name)
        return more_work

    def _leave(self) -> None:
        if self._table is not None:
            self._table.close_all()
        if self._feed is not None:
            self._feed.close()
        self._table = self._send = self._feed = None
        self.stats.sessions = 0
        end_if_device_lost()  # verify's end may be that of a GPU shared with it

    def _shut_down(self) -> None:
        self._leave()
        for proposer in self.proposers:
            try:
                proposer.shut_down()
            except Exception:  # noqa: BLE001 (the others are shut down all the same)
                _log.exception("proposer %s failed to shut down", proposer.name)


def _fits(proposer: Proposer, target: Target) -> bool:
    try:
        proposer.bind(target)
    except FailedPreconditionError as error:
        _log.error("proposer %s does not fit the target: %s", proposer.name, error)
        return False
    except Exception:  # noqa: BLE001 (a third party's code; it is not offered)
        _log.exception("proposer %s failed to take the target", proposer.name)
        return False
    missing = sorted(set(proposer.feature_boundaries) - set(target.feature_boundaries))
    if missing:
        _log.error("proposer %s wants states at boundaries %s, which are not published", proposer.name, missing)
    return not missing
