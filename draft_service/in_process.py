"""Proposers for a verify service that runs them in its own process, which finds `create` by its entry point."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread
from time import perf_counter
from typing import cast

from draft_service.layer_check.capture_layer_check import begun_checks
from draft_service.proposers.base import CPU, Proposer
from draft_service.proposers.hidden_states import bfloat16_copy, bfloat16_view
from draft_service.proposers.registry import ProposerSpec, load_proposers
from draft_service.protocol import codec
from draft_service.protocol.codec import Identity
from draft_service.protocol.placement import CPU as ON_CPU
from draft_service.protocol.placement import Placement, placed
from draft_service.protocol.records import Record
from draft_service.verify_link.hidden_state_ring import HiddenStateRing
from draft_service.worker.worker import Worker
from slipstream.rpc.errors import FailedPreconditionError, UnavailableError
from slipstream.v1 import draft_pb2
from slipstream_kernels.draft_protocol.proposer_host import (
    IN_PROCESS,
    Answer,
    Commands,
    DevicePassResult,
    EnqueuedRound,
    EnqueueRequest,
    HostLimits,
    Replies,
)
from slipstream_kernels.draft_protocol.records import Commit, Extend, Reply, TreeReply
from slipstream_kernels.ipc.device_memory import DeviceBlock
from slipstream_kernels.models.capture_layers import Bits
from slipstream_kernels.sync.spin_event import SpinEvent

_log = logging.getLogger(__name__)

AWAKE_SECONDS = 0.01
"""How long both sides look for each other's records where proposers compute on a GPU: longer than a verify step."""
AWAKE_CPUS = 4
"""So many must the process have for that: two threads keep one each, and others have work to do."""


class InProcessHost:
    """The worker that owns the proposers, fed by another thread of this process. Implements `ProposerHost`."""

    def __init__(
        self,
        proposers: Sequence[Proposer],
        spin: float = 0.0,
        placement: Placement = ON_CPU,
        checks: Sequence[Callable[[], None]] = (),
    ) -> None:
        """For `spin` seconds after a record the worker looks for the next one without sleeping.

        `placement` is where proposers compute that do not say it themselves.
        `checks` call them on a thread of its own before the worker does; `offer` waits for that.
        Where all proposers allow it, the thread that puts records drafts.
        """
        self.spin = spin
        self._placement = placement
        self._worker = Worker(proposers)
        self._proposers = tuple(proposers)
        self._epoch = 0
        self._shares = all(proposer.shares_thread for proposer in proposers)
        self._feed: QueueFeed | SharedFeed = self._new_feed()
        self._starting = Thread(target=self._start_after, args=(checks,), name="draft-check", daemon=True)
        self._starting.start()

    def offer(self, link_info: bytes) -> bytes:
        target = codec.decode_target(draft_pb2.DraftLinkServiceGetInfoResponse.FromString(link_info))
        unfit = self._worker.bind(target).result().unfit
        if unfit:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in unfit.items())
            raise FailedPreconditionError(f"proposers that do not fit the model: {reasons}")
        identity = Identity("in this process", "", os.getpid(), "", self._placement)
        return codec.encode_attach(identity, self._proposers, "", (IN_PROCESS,), None).SerializeToString()

    @property
    def state_device(self) -> str:
        devices = {proposer.state_device for proposer in self._proposers if proposer.feature_boundaries}
        return devices.pop() if self._shares and len(devices) == 1 else CPU

    def attach(self, attached: bytes, answer: Answer, block: DeviceBlock | None = None) -> None:
        attachment = codec.decode_attachment(draft_pb2.AttachResponse.FromString(attached), (IN_PROCESS,))

        def send(replies: list[Reply]) -> None:
            answer([_told(reply) for reply in replies])

        states = None if block is None else HiddenStateRing(block, self.state_device)
        self._epoch, self._feed = attachment.epoch, self._new_feed(states)
        self._worker.attach(attachment, self._proposers, send, self._feed)

    def put(self, commands: Commands) -> None:
        self._feed.put(commands)

    @property
    def released(self) -> int:
        return self._feed.released if isinstance(self._feed, SharedFeed) else 0

    def yield_gil(self, seconds: float) -> bool:
        return self._feed.yield_gil(seconds)

    def follow(self, values: Sequence[EnqueueRequest], outcome: DevicePassResult, seconds: float) -> EnqueuedRound:
        return self._worker.follow(values, outcome, seconds) if self._shares else EnqueuedRound()

    def begin(self) -> bool:
        try:
            return self._shares and self._worker.begin()
        except Exception:  # noqa: BLE001 - a step goes on
            _log.exception("a round was not begun")
            return False

    def finish(self, seconds: float, *, unread: bool = False) -> Replies | None:
        if not self._shares:
            return None
        try:
            replies = self._worker.finish(seconds, unread=unread)
        except Exception:  # noqa: BLE001 - a step goes on
            _log.exception("a round was not finished")
            return None
        return None if replies is None else [_told(reply) for reply in replies]

    def detach(self) -> None:
        self._worker.detach(self._epoch)

    def stop(self, seconds: float) -> None:
        until = perf_counter() + seconds
        self._starting.join(seconds)
        self._worker.stop(max(0.0, until - perf_counter()))

    def _start_after(self, checks: Sequence[Callable[[], None]]) -> None:
        try:
            for check in checks:
                check()
        finally:
            self._worker.start()

    def _new_feed(self, states: HiddenStateRing | None = None) -> QueueFeed | SharedFeed:
        return SharedFeed(states) if self._shares else QueueFeed(self.spin)


class SharedFeed:
    """Records that are read by the worker, or on the thread that puts them. `put` and `wake` are for any thread."""

    __slots__ = ("_commands", "_states", "_woken", "released")

    def __init__(self, states: HiddenStateRing | None = None) -> None:
        """`states` are those that records name by their place on the device."""
        self._commands: deque[Commands] = deque()
        self._states = states
        self._woken = Event()
        self.released = 0
        """Of how many calls of `put` the states there have been read."""

    def put(self, commands: Commands) -> None:
        """Those of a step wake nobody before `yield_gil` is called."""
        self._commands.append(commands)
        if not all(isinstance(command, Commit) for command in commands):
            self._woken.set()

    def receive(self) -> list[Record]:
        """What has arrived, in order."""
        records: list[Record] = []
        while self._commands:
            arrived, states = _records(self._commands.popleft()), self._states
            try:
                records += arrived if states is None else states.resolve(arrived)
            except UnavailableError:
                _log.exception("records within this process are lost")
        if self._states is not None:
            self.released = self._states.released
        return records

    def wait(self, seconds: float) -> None:
        """Return when woken, or when something has arrived that is no step's, or after `seconds`."""
        self._woken.wait(seconds)
        self._woken.clear()

    def yield_gil(self, seconds: float) -> bool:
        """Wake the worker to what was put. Does not wait for that."""
        self._woken.set()
        return False

    def wake(self) -> None:
        """End a wait."""
        self._woken.set()

    def close(self) -> None:
        """Let the states go; no record names any now."""
        states, self._states = self._states, None
        if states is not None:
            states.close()


class QueueFeed:
    """Records from another thread, read when the worker asks for them. `put` and `wake` are for any thread."""

    __slots__ = ("_event", "_looked_at", "_queue", "_sleeps_at", "_spin", "_woken", "asleep")

    def __init__(self, spin: float = 0.0) -> None:
        """For `spin` seconds after something was received `wait` does not sleep."""
        self._spin, self._sleeps_at = spin, 0.0
        self._event = SpinEvent() if spin else None
        self._queue: SimpleQueue[Commands] = SimpleQueue()
        self._looked_at: Commands = ()
        self.asleep = False
        """Whether the worker waits for records."""
        self._woken = Lock()
        """Locked until the worker has woken."""
        self._woken.acquire()

    def put(self, commands: Commands) -> None:
        """Those of a step wake a worker that is awake as `yield_gil` is called."""
        self._queue.put(commands)
        if self._event is not None and not any(isinstance(command, Commit) for command in commands):
            self._event.notify(yield_gil=False)

    def receive(self) -> list[Record]:
        """What has arrived, in order."""
        commands, self._looked_at = list(self._looked_at), ()
        with suppress(Empty):
            while True:
                commands.extend(self._queue.get_nowait())
        records = _records(commands)
        if records and self._spin:
            self._sleeps_at = perf_counter() + self._spin
        return records

    def wait(self, seconds: float) -> None:
        """Return when something has arrived, when woken, or after `seconds`."""
        self.asleep = True
        self._look_out(min(self._sleeps_at, perf_counter() + seconds))
        with suppress(Empty):
            self._looked_at = self._queue.get(timeout=seconds)
        self.asleep = False
        if self._woken.locked():
            self._woken.release()

    def yield_gil(self, seconds: float) -> bool:
        """Wait until the worker has woken to what was put, if it slept, or for so long; returns whether it has.

        For the thread that puts. The worker has the interpreter then, which it would otherwise get once this thread
        waits for something, or has had it for a while.
        """
        self._woken.acquire(blocking=False)
        if not self.asleep or self._queue.empty():
            return False
        if self._event is not None:
            self._event.notify(yield_gil=True)
        if self.asleep:
            self._woken.acquire(timeout=seconds)
        return not self.asleep

    def wake(self) -> None:
        """End a wait."""
        self.put(())

    def close(self) -> None:
        """Nothing is held."""

    def _look_out(self, until: float) -> None:
        """Stay awake until something is there, or to that time."""
        if self._event is not None and (left := until - perf_counter()) > 0:
            notified = self._event.notified
            if self._queue.empty():
                self._event.wait(notified, left)


def create(specs: Sequence[str], limits: HostLimits) -> InProcessHost:
    """Load proposers, named as on this service's command line. Raises SlipstreamError as `load_proposers` does."""
    proposers = load_proposers(
        [ProposerSpec.parse(spec) for spec in specs],
        threads=limits.threads,
        max_nodes=limits.max_nodes,
        max_depth=limits.max_depth,
        top_k=limits.top_k,
        device=limits.device,
    )
    checks: list[Callable[[], None]] = []
    if limits.boundary_check_mib:
        target = Path(limits.target) if limits.target else None
        # The target is loaded while they read its weights.
        checks = begun_checks(proposers, limits.boundary_check_mib << 20, target)
    stays_awake = limits.device != CPU and len(os.sched_getaffinity(0)) >= AWAKE_CPUS
    return InProcessHost(proposers, AWAKE_SECONDS if stays_awake else 0.0, placed(limits.device), checks)


def _records(commands: Commands) -> list[Record]:
    records: list[Record] = []
    for command in commands:
        try:
            if isinstance(command, Commit | Extend):
                records.append(cast("Record", command) if command.hidden_states is None else _with_tensor(command))
            else:
                records.extend(codec.decode_command_bytes(command))
        except UnavailableError:  # one of ours: verify made it
            _log.exception("a record within this process is lost")
    return records


def _with_tensor(record: Commit[Bits] | Extend[Bits]) -> Record:
    """The record with states as a tensor: those of a step in memory of their own."""
    bits = record.hidden_states
    if bits is None:
        return cast("Record", record)
    if isinstance(record, Extend):
        features = bfloat16_view(bits)
        return Extend(record.stamp, record.first_position, features, record.device_rows)
    features = bfloat16_copy(bits)
    return cast("Record", record._replace(hidden_states=features))  # type: ignore[arg-type]  # of the other end


def _told(reply: Reply) -> TreeReply | bytes:
    return reply if isinstance(reply, TreeReply) else codec.encode_replies([reply]).SerializeToString()
