"""The one thread that owns all proposers: takes records, drafts, sends trees.

Every pass takes all records that have arrived, so that the newest state of each slot wins and the sessions of one
proposer are drafted together. A tree whose state was superseded meanwhile is sent as well: verify learns from it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count
from math import inf
from queue import SimpleQueue
from time import perf_counter

from draft_service.proposers.base import Proposer, Target
from draft_service.protocol.codec import AttachGrant
from draft_service.protocol.records import EMPTY_TREE, Close, Record
from draft_service.worker.background_scheduler import Background
from draft_service.worker.commands import Attach, Bind, Binding, Command, Detach, Send, SendReply, Stop
from draft_service.worker.device_fault import end_if_device_lost
from draft_service.worker.draft_call import Asked, DraftBatch, DraftCall
from draft_service.worker.pass_queue import PassQueue, draft_behind, followed
from draft_service.worker.record_source import RecordSource
from draft_service.worker.session_table import MOST_TOKENS, SessionSlot, SessionTable
from draft_service.worker.target_binding import Fitting
from slipstream_kernels.device_tree import DeviceTree, most_rows
from slipstream_kernels.draft_protocol.proposer_host import DevicePassResult, EnqueuedRound, EnqueueRequest
from slipstream_kernels.draft_protocol.records import Gap, Reply, Stamp, TreeReply
from slipstream_kernels.token_tree import TokenTree

_log = logging.getLogger(__name__)

TURN_SECONDS = 0.1
"""Longest wait at a record source, should the worker have missed a `wake`."""
_LOOK_SECONDS = 1e-4
"""Interval at which a thread that waits for the pass lock checks whether it still has to."""


@dataclass(slots=True)
class WorkerStats:
    """Counters since the start. Written by the worker, read by anyone."""

    trees_sent: int = 0
    nodes_sent: int = 0
    superseded: int = 0
    failures: int = 0
    sessions: int = 0
    partial: int = 0
    """Sessions that began without older states which their proposer wanted."""


@dataclass(slots=True)
class Worker:
    """Owns the proposers. All public methods may be called from any thread.

    Passes are made by a thread of its own. Where the proposers allow it, one other thread may make some by `begin` and
    `finish`, while nobody else is at one.
    """

    proposers: Sequence[Proposer]
    stats: WorkerStats = field(default_factory=WorkerStats)
    _commands: SimpleQueue[Command] = field(default_factory=SimpleQueue)
    _newest: dict[int, Stamp | None] = field(default_factory=dict)
    _thread: threading.Thread | None = None
    _table: SessionTable | None = None
    _send: Send | None = None
    _source: RecordSource | None = None
    _queue: PassQueue | None = None
    _arrived: list[Command] = field(default_factory=list)
    _looked_at: float = 0.0
    """When the source was read last."""
    _waits_since: float = inf
    """Lower bound of the arrival of the records picked up."""
    _pass_lock: threading.Lock = field(default_factory=threading.Lock)
    """Held by the thread that makes a pass, or a part of one."""
    _batch: DraftBatch | None = None
    """The pass under way; no proposer may be called before it is finished."""
    _unsent: list[tuple[Send, list[Reply]]] = field(default_factory=list)
    """What the worker's own thread has yet to send, and how."""
    _fitting: Fitting = field(default_factory=Fitting)
    _vocab_size: int = 0
    _hidden_size: int = 0
    _numbers: count[int] = field(default_factory=lambda: count(1))

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="draft-worker", daemon=True)
        self._thread.start()

    def stop(self, seconds: float | None = None) -> None:
        """Finish the present pass, shut the proposers down and end the thread; waits for that, up to `seconds`."""
        self._post(Stop())
        if self._thread is not None:
            self._thread.join(seconds)

    def bind(self, target: Target) -> Future[Binding]:
        """Tell every proposer of the target; the result holds those that fit it, and why the others do not."""
        done: Future[Binding] = Future()
        self._post(Bind(target, done))
        return done

    def attach(
        self,
        attachment: AttachGrant,
        proposers: Sequence[Proposer],
        send: Send,
        source: RecordSource | None = None,
        queue: PassQueue | None = None,
    ) -> None:
        """Begin an attachment; sessions of an earlier one are closed. `proposers` are those offered, in order.

        Records are handed over by `put`, or picked up from `source`. Behind the passes of `queue` rounds are queued.
        """
        self._newest = {}
        self._post(Attach(attachment, proposers, send, source, queue))

    def detach(self, epoch: int) -> None:
        """End an attachment; its sessions are closed."""
        self._post(Detach(epoch))

    def send(self, reply: Reply) -> None:
        """Send a reply that answers no record; dropped while nothing is attached."""
        self._post(SendReply(reply))

    def put(self, records: Sequence[Record]) -> None:
        """Hand over records in the order of their arrival."""
        self._note(records)
        self._post(records)

    def begin(self) -> bool:
        """Begin a pass over the source's records on the calling thread; waits for nothing.

        False where somebody else is at one or has something else to do first: the worker's own thread then makes it,
        once it is woken.
        """
        if not self._pass_lock.acquire(blocking=False):
            return False
        try:
            if self._batch is not None or self._table is None or not self._commands.empty():
                return False
            self._looked_at = perf_counter()
            self._batch = self._begun()
            return True
        finally:
            self._pass_lock.release()

    def follow(self, values: Sequence[EnqueueRequest], outcome: DevicePassResult, seconds: float) -> EnqueuedRound:
        """Have the proposers draft behind a pass of the target, on the calling thread.

        What has arrived is taken in first: of steps that have their trees already nothing need be answered. Nothing
        comes of it where somebody else stays at a pass for so many seconds, as to take in the states of a long prompt,
        or has something to do first.
        """
        if not self._pass_lock.acquire(timeout=seconds):
            return EnqueuedRound()
        try:
            if self._table is None or not self._commands.empty():
                return EnqueuedRound()
            if self._batch is None:
                self._look()
                if self._arrived:
                    self._batch = self._begun()
            if self._batch is not None:
                if not self._batch.is_handed:
                    return EnqueuedRound()
                self._answers()
            return EnqueuedRound() if self._arrived else followed(self._table, values, outcome)
        finally:
            self._pass_lock.release()

    def finish(self, seconds: float, *, unread: bool = False) -> list[Reply] | None:
        """What the pass that was begun answers, for which this waits so long at most; None where there is nothing.

        Then either nothing was begun, or it is not done, or the worker's own thread has sent what it answers. With
        `unread`, trees that a device works on are not waited for.
        """
        until = perf_counter() + seconds
        while self._batch is not None:
            if self._pass_lock.acquire(timeout=max(0.0, min(seconds, _LOOK_SECONDS))):
                try:
                    return self._finished(until, unread=unread)
                finally:
                    self._pass_lock.release()
            if perf_counter() >= until:
                break
        return None

    def _begun(self) -> DraftBatch:
        """A pass over the source's records."""
        return self._ask([reply for item in self._take(commands=False) for reply in self._handle(item)])

    def _run(self) -> None:
        background = Background(self.proposers)
        while True:
            with self._pass_lock:
                self._reply(self._answers())
                items = self._take(commands=True)
                replies: list[Reply] = []
                for item in items:
                    if isinstance(item, Stop):
                        self._shut_down()
                        self._send_all()
                        return
                    replies.extend(self._handle(item))
                self._batch = self._ask(replies)
                self._reply(self._answers())
                if self._queue is not None and self._table is not None and not self._arrived:
                    draft_behind(self._queue, self._table)
                if self._table is not None:
                    self.stats.partial += self._table.partial
                    self._table.partial = 0
                more_work = background.advance()
            self._send_all()
            if more_work:
                background.settle()  # while other threads may make a pass
            elif not items:
                self._rest()

    def _rest(self) -> None:
        """Wait until something has arrived, `TURN_SECONDS` at most with a source."""
        if self._source is not None:
            self._source.wait(TURN_SECONDS)
            self._looked_at = perf_counter()
        else:
            self._arrived.append(self._commands.get())

    def _take(self, *, commands: bool) -> list[Command]:
        """Return all that has arrived; `commands`: those of other threads too."""
        items, self._arrived = self._arrived, []
        items.extend(self._pick_up())
        while commands and not self._commands.empty():  # which nobody else takes from
            items.append(self._commands.get_nowait())
        return items

    def _reply(self, replies: list[Reply]) -> None:
        """Have replies sent once the pass lock is free: who takes them may wait for it himself."""
        if replies and self._send is not None:
            self._unsent.append((self._send, replies))

    def _send_all(self) -> None:
        unsent, self._unsent = self._unsent, []
        for send, replies in unsent:
            send(replies)

    def _pick_up(self) -> list[Command]:
        """Return the records that the source holds, as one item; none without a source."""
        looked_at, self._looked_at = self._looked_at, perf_counter()
        records = () if self._source is None else self._source.receive()
        if records:
            self._waits_since = min(self._waits_since, looked_at)
        self._note(records)
        return [records] if records else []

    def _note(self, records: Sequence[Record]) -> None:
        """Remember the newest state of each slot, so that trees for older ones are not sent."""
        newest = self._newest
        for record in records:
            newest[record.stamp.slot] = None if isinstance(record, Close | Gap) else record.stamp

    def _post(self, item: Command) -> None:
        self._commands.put(item)
        source = self._source
        if source is not None:
            source.wake()

    def _handle(self, item: Command) -> list[Reply]:
        match item:
            case Attach(attachment, proposers, send, source, queue):
                self._leave()
                self._table = SessionTable(
                    attachment.epoch,
                    attachment.num_slots,
                    proposers,
                    self._numbers,
                    self._hidden_size,
                    deadline=attachment.deadline,
                    vocab_size=self._vocab_size or MOST_TOKENS,
                )
                self._send, self._source, self._queue = send, source, queue
            case Detach(epoch):
                if self._table is not None and self._table.epoch == epoch:
                    self._leave()
            case Bind(target, done):
                self._leave()
                self._vocab_size, self._hidden_size = target.vocab_size, target.hidden_size
                if done.set_running_or_notify_cancel():
                    done.set_result(self._fitting.bind(self.proposers, target))
            case SendReply(said):
                return [said]
            case Stop():
                pass
            case records if self._table is not None:
                return [reply for record in records if (reply := self._table.apply(record)) is not None]
            case _:
                pass
        return []

    def _ask(self, replies: list[Reply]) -> DraftBatch:
        """Ask the proposers for trees of the states that want one, beside what is answered already."""
        asked: list[Asked] = []
        if self._table is not None:
            now = perf_counter()
            waited, self._waits_since = (now - min(now, self._waits_since)) / 2, inf  # as it is to be expected
            for proposer, wanted in self._table.wanted(waited).items():
                call = DraftCall(proposer, [request for _, request in wanted], self._vocab_size)
                asked.append(Asked(call, [slot for slot, _ in wanted]))
            self.stats.sessions = len(self._table)
        return DraftBatch(replies, asked)

    def _finished(self, until: float, *, unread: bool) -> list[Reply] | None:
        begun = self._batch
        if begun is None:
            return None
        given = begun.device_trees() if unread else None
        return self._answers(given) if given is not None or begun.wait(until) else None

    def _answers(self, given: Sequence[Sequence[TokenTree | None]] | None = None) -> list[Reply]:
        """Finish the pass that was begun, if one was, with the trees `given` or those of its calls."""
        begun, self._batch = self._batch, None
        if begun is None:
            return []
        replies = begun.replies
        for number, (call, slots) in enumerate(begun.asked):
            if given is None and all(slot.handed for slot in slots) and call.device_trees() is not None:
                trees: Sequence[TokenTree | None] = [EMPTY_TREE] * len(slots)  # nobody reads them here
            else:
                trees = call.result() if given is None else given[number]
            self._look()
            assert self._table is not None  # attachments change between passes
            for slot, tree in zip(slots, trees, strict=True):
                if slot.handed:
                    slot.wants_tree = False
                    self.stats.trees_sent += 1
                else:
                    replies.append(self._reply_of(self._table, slot, tree))
        return replies

    def _reply_of(self, table: SessionTable, slot: SessionSlot, tree: TokenTree | None) -> Reply:
        """What is sent of a slot's tree, None for one that its proposer failed to make."""
        slot.wants_tree = False
        if tree is None:
            assert slot.proposer is not None
            self.stats.failures += 1
            return table.refuse(slot, f"proposer {slot.proposer.name} failed")
        if not self._is_current(slot):
            # Too late to be of use, yet it tells verify that this slot is drafted for, and what waiting would bring.
            self.stats.superseded += 1
            return TreeReply(slot.stamp, EMPTY_TREE if isinstance(tree, DeviceTree) else tree)
        self.stats.trees_sent += 1
        self.stats.nodes_sent += most_rows(tree)[0]
        if isinstance(tree, DeviceTree):
            return TreeReply(slot.stamp, tree)
        return TreeReply(slot.stamp, tree, table.sources_of(slot, tree))

    def _look(self) -> None:
        """Take in what the source holds, to be handled in the next pass."""
        self._arrived.extend(self._pick_up())

    def _is_current(self, slot: SessionSlot) -> bool:
        return self._newest.get(slot.stamp.slot) == slot.stamp

    def _leave(self) -> None:
        if self._table is not None:
            self._table.close_all()
        if self._source is not None:
            self._source.close()
        self._table = self._send = self._source = self._queue = None
        self.stats.sessions = 0
        end_if_device_lost()  # verify's end may be that of a GPU shared with it

    def _shut_down(self) -> None:
        self._leave()
        for proposer in self.proposers:
            try:
                proposer.shut_down()
            except Exception:  # noqa: BLE001 (the others are shut down all the same)
                _log.exception("proposer %s failed to shut down", proposer.name)
