"""The verify services behind the gateway: which one takes a request, and what happens when one goes away."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

from gateway.core.request import VerifyInfo
from gateway.metrics import Metrics
from gateway.replicas.adapter_updates import AdapterUpdates
from gateway.replicas.parked_streams import ParkedStreams
from gateway.replicas.quarantine import Entry, Quarantine
from gateway.replicas.replica import Replica
from gateway.replicas.resumable_stream import ResumableStream
from gateway.replicas.resume_deadlines import ResumeDeadlines
from gateway.replicas.router import Router
from gateway.replicas.routing import Prefix, RoutingPolicy
from slipstream.directory.member import Member
from slipstream.rpc.errors import InternalError, ResourceExhaustedError, SlipstreamError, UnavailableError

_log = logging.getLogger(__name__)

TRIAL_SHARE: Final = 1 / 6
"""Part of `resume_seconds` for which the trial of a suspect may hold up others."""

AGAIN_SECONDS: Final = 0.25
"""Between attempts to go on at services that are full, or where suspects are tried."""

RETRY_SECONDS: Final = 5.0
"""What clients are told to wait before they repeat a request that a loss has ended: about a restart."""

_GONE: Final = "the verify service went away"
_DRAINS: Final = "the verify service drains"
_RECOVERS: Final = "the verify service recovers from a loss"


class VerifyClient:
    """All replicas of one model. Requests go to one that is ready, by a routing policy.

    When a replica goes away its requests go on at another one of the same model from the tokens already received, as
    tokens are a function of model, request and position alone. New requests go to one model: the first one ready,
    until no replica serves it; while it is away no longer than `resume_seconds`, they wait for it.

    A request that was lost, or waits, fails as unavailable unless a token of it comes within `resume_seconds`, wherever
    it is then. Requests that ran when a service crashed go to the quarantine, which tries them in ever smaller groups.
    The poison request fails as internal once it is found; quarantined and new requests wait for the trials. See
    Quarantine.
    """

    __slots__ = ("_again", "_away_since", "_closing", "_connect", "_deadlines", "_dropping", "_metrics", "_parked",
                 "_quarantine", "_replicas", "_resume_seconds", "_router", "_served", "adapters")  # fmt: skip

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        timeout: float,
        resume_seconds: float,
        metrics: Metrics | None = None,
        policy: RoutingPolicy | None = None,
        connect: Callable[..., Replica] = Replica,
    ) -> None:
        self._resume_seconds = resume_seconds
        self._metrics = metrics or Metrics()
        self._router = Router(policy or Prefix())
        self._parked = ParkedStreams()
        self._deadlines = ResumeDeadlines(resume_seconds, self._expire)
        self._quarantine = Quarantine(resume_seconds * TRIAL_SHARE)
        self._again: asyncio.TimerHandle | None = None
        self._served: VerifyInfo | None = None
        self._away_since = -math.inf  # when a session was lost last
        self._connect = functools.partial(connect, owner=self, timeout=timeout)
        self._replicas = [self._connect(address) for address in addresses]
        self._dropping: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self.adapters = AdapterUpdates()

    async def start(self) -> None:
        """Connect to all replicas in the background."""
        for replica in self._replicas:
            replica.start()

    async def close(self) -> None:
        """End all sessions."""
        await asyncio.gather(*self._closing, *(replica.close() for replica in self._replicas))
        for stream in self._parked:
            self.cancel(stream)
        for timer in (self._again, self._dropping):
            if timer is not None:
                timer.cancel()

    def update(self, members: Sequence[Member]) -> None:
        """Take a directory's list: no new requests go to services that drain or are named no more.

        Their streams move where they can go on bit for bit, and else end where they are; a service named no more is
        kept as long. A list without members changes nothing.
        """
        wanted = {member.address: member for member in members}
        if not wanted:
            if self._replicas:
                _log.warning("the directory names no verify service: the last list stays")
            return
        for replica in self._replicas:
            member = wanted.get(replica.address)
            replica.leaving = member is None or bool(replica.epoch and member.epoch not in {0, replica.epoch})
            if member is not None and not replica.leaving:
                replica.epoch, replica.draining = member.epoch or replica.epoch, member.draining
                del wanted[replica.address]
        for member in wanted.values():
            replica = self._connect(member.address)
            replica.epoch, replica.draining = member.epoch, member.draining
            self._replicas.append(replica)
            replica.start()
            _log.info("the directory names verify service %s epoch=%d", member.address, member.epoch)
        self._dispatch()
        if self._dropping is None:
            self._drop()

    @property
    def ready(self) -> bool:
        """Whether a service takes requests."""
        return bool(self._usable())

    @property
    def replicas(self) -> Sequence[Replica]:
        """All of them, ready or not."""
        return self._replicas

    @property
    def info(self) -> VerifyInfo:
        """Facts about the model served. UnavailableError while requests are not taken, not even to wait."""
        if self._served is None or not ((usable := self._usable()) or self._awaited()):
            raise _unreachable()
        infos = [replica.info for replica in usable if replica.info is not None]
        return self.adapters.merged(infos) if infos else self._served

    @property
    def model_name(self) -> str:
        """The model served, or served last; empty before any service has answered."""
        return "" if self._served is None else self._served.model_name

    async def fetch_info(self) -> VerifyInfo:
        """Facts of this moment, asked of a replica."""
        if not (usable := self._usable()):
            raise _unreachable()
        return await min(usable, key=lambda replica: replica.load).fetch_info()

    def submit(self, streams: Sequence[ResumableStream]) -> None:
        """Send the choices of one request to one replica, where they share the prompt's pages.

        UnavailableError or ResourceExhaustedError where they can be neither sent nor let wait; InternalError for a
        request that repeats one which ended the service each time.
        """
        if self._quarantine.was_convicted(streams, time.monotonic()):
            raise InternalError("the verify service went away while this request ran alone, and it is not tried again")
        self._quarantine.recall(streams, time.monotonic())
        try:
            self._submit(streams)
        except SlipstreamError:
            for stream in streams:
                self._quarantine.clear(stream, time.monotonic())
            raise

    def _submit(self, streams: Sequence[ResumableStream]) -> None:
        usable = [replica for replica in self._usable() if replica.info and streams[0].is_adapted(replica.info)]
        ranked, prompt = self._router.rank(streams[0].request, usable)
        replica = ranked[0] if ranked else None
        if replica is not None and self._is_open(replica, streams):
            self._router.send(replica, streams, prompt)
        elif self._served is not None and (replica is not None or self._awaited()):
            self._let_wait(streams, self._served)
        else:
            raise _unreachable()

    def cancel(self, stream: ResumableStream) -> None:
        """Stop a choice that nobody reads any more. Finished ones are left alone."""
        if not self._parked.discard(stream) and stream.replica is not None:
            stream.replica.cancel(stream)
        self._settle(stream)

    async def bring_up(self, replica: Replica, info: VerifyInfo) -> VerifyInfo:
        """See Owner."""
        return await self.adapters.bring_up(replica, info)

    @property
    def usable(self) -> Sequence[Replica]:
        """Those that new requests may go to."""
        return self._usable()

    def on_ready(self, replica: Replica) -> None:
        """See Owner: what waited for the replica, or at others, goes on; none is moved while suspects are tried."""
        if replica not in self._usable():
            _log.warning("verify service %s serves another model and is not used", replica.address)
        self._router.watch(self._usable())
        self._parked.sort(self._quarantine.priority)
        self._dispatch()
        if not len(self._quarantine):
            self._router.relieve(self._replicas, replica)

    def on_unloaded(self, names: Collection[str]) -> None:
        """See Owner."""
        self.adapters.note_gone(names, self._replicas)

    def on_lost(self, streams: list[ResumableStream], *, yielded: bool) -> None:
        """See Owner: the streams go on elsewhere, wait, or fail."""
        now = self._away_since = time.monotonic()
        self._quarantine.record_loss(streams, yielded=yielded, now=now)
        for stream in streams:
            if self._quarantine.convicts(stream, now):
                self._convict(stream)
            else:
                self._pause(stream, UnavailableError(_GONE))
        self._parked.sort(self._quarantine.priority)
        self._dispatch()

    def on_return(self, stream: ResumableStream, error: SlipstreamError) -> bool:
        """See Owner. What has been taken once is not refused later for a reason that passes."""
        taken = bool(stream.losses) or stream.bound
        if isinstance(error, UnavailableError) and taken:
            self._pause(stream, error)
        elif isinstance(error, UnavailableError) and self._ready(stream.fits):
            self._wait(stream, error)
        elif isinstance(error, ResourceExhaustedError) and taken and self._resume_seconds:
            self._wait(stream, error, not_before=time.monotonic() + AGAIN_SECONDS)
        elif error.field == "speculation.proposer" and taken and stream.proposer:
            stream.forget_proposer()
            self._wait(stream, error)
        else:
            self._settle(stream)
            return False
        self._dispatch()
        return True

    def on_progress(self, stream: ResumableStream) -> None:
        """See Owner."""
        if stream.losses and stream.paused_at:
            self._metrics.resumed(time.monotonic() - stream.paused_at)
        self._quarantine.progress(stream, time.monotonic())
        self._settle(stream)
        if len(self._parked) or any(replica.draining for replica in self._replicas):
            self._dispatch()

    def _usable(self) -> list[Replica]:
        """Where new requests may go."""
        found = self._same_model()
        if not found and (ready := self._ready(lambda info: True)):
            self._served = ready[0].info
            found = self._same_model()
        return found

    def _same_model(self) -> list[Replica]:
        served = self._served
        return [] if served is None else self._ready(lambda info: info.fingerprint == served.fingerprint)

    def _ready(self, fits: Callable[[VerifyInfo], bool]) -> list[Replica]:
        return [
            replica for replica in self._replicas if replica.ready and replica.info is not None and fits(replica.info)
        ]

    def _awaited(self) -> bool:
        """Whether what was served has gone just now and may be back soon, and not because it drains."""
        draining = any(replica.info is not None for replica in self._replicas)
        return not draining and time.monotonic() < self._away_since + self._resume_seconds

    def _is_open(self, replica: Replica, streams: Sequence[ResumableStream]) -> bool:
        """Whether new streams may be sent at once: not while a suspect is tried there, or waits for its trial."""
        if not len(self._quarantine):
            return True
        entry = self._quarantine.entry(streams[0], replica.streams, time.monotonic(), len(streams))
        return not len(self._parked) and entry is Entry.OPEN

    def _let_wait(self, streams: Sequence[ResumableStream], served: VerifyInfo) -> None:
        if len(self._parked) + len(streams) > served.max_requests:
            raise ResourceExhaustedError(
                f"{len(self._parked)} choices wait for a verify service, the limit is {served.max_requests}"
            )
        for stream in streams:
            stream.origin = served
            self._wait(stream, UnavailableError(_RECOVERS if self._usable() else _GONE))
        self._dispatch()

    def _pause(self, stream: ResumableStream, reason: SlipstreamError) -> None:
        """A stream has lost its service."""
        self._wait(stream, reason)
        stream.on_lost(reason)

    def _wait(self, stream: ResumableStream, reason: SlipstreamError, *, not_before: float = 0.0) -> None:
        """A stream waits for a service, against its deadline."""
        if not stream.paused_at:
            self._metrics.paused.inc()
        stream.wait(reason)
        self._deadlines.start(stream)
        self._parked.add(stream, not_before=not_before)

    def _dispatch(self) -> None:
        """Send on what waits, in order, where its model is served and its place is free; the rest waits, or fails."""
        self._vacate()
        closed: set[Replica] = set()
        for stream in self._parked:
            if not (replicas := self._ready(stream.fits)):
                self._hold(stream)
            elif self._parked.is_due(stream, time.monotonic()):
                self._enter(stream, replicas, closed)
        waits = len(self._parked) or any(replica.draining and replica.load for replica in self._replicas)
        if waits and self._again is None and self._ready(lambda info: True):
            self._again = asyncio.get_running_loop().call_later(AGAIN_SECONDS, self._dispatch_again)

    def _dispatch_again(self) -> None:
        self._again = None
        self._dispatch()

    def _enter(self, stream: ResumableStream, replicas: Sequence[Replica], closed: set[Replica]) -> None:
        """Send a stream to the first replica that it may go to; where there is none, nobody behind it goes there."""
        now = time.monotonic()
        ranked, prompt = self._router.rank(stream.request, replicas)
        for replica in ranked:
            entry = Entry.LATER if replica in closed else self._quarantine.entry(stream, replica.streams, now)
            if entry is not Entry.LATER:
                self._parked.discard(stream)
                if entry is Entry.ALONE:
                    self._withdraw(replica)
                self._router.send(replica, [stream], prompt)
                return
        closed.update(replicas)

    def _vacate(self) -> None:
        """Let streams of services that drain wait for others, where there are any that can go on with them."""
        ready = self._ready(lambda info: True) if self._resume_seconds else []
        for replica, stream in self._router.leaving(self._replicas, ready, len(self._parked)):
            replica.cancel(stream)
            self._pause(stream, UnavailableError(_DRAINS))

    def _drop(self) -> None:
        """Part from services named no more that have no streams; look again while some have."""
        self._dropping = None
        for replica in [each for each in self._replicas if each.leaving and not each.load]:
            self._replicas.remove(replica)
            task = asyncio.create_task(replica.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
            _log.info("the directory names verify service %s no more", replica.address)
        if any(replica.leaving for replica in self._replicas):
            self._dropping = asyncio.get_running_loop().call_later(AGAIN_SECONDS, self._drop)

    def _withdraw(self, replica: Replica) -> None:
        """Let everything at a replica wait, for a trial that has to have it alone."""
        for stream in replica.streams:
            replica.cancel(stream)
            self._pause(stream, UnavailableError(_RECOVERS))

    def _hold(self, stream: ResumableStream) -> None:
        """Let a stream wait for a service of its model, if one can still come."""
        reason = stream.reason or _unreachable()
        others = [replica.info for replica in self._replicas if replica.info is not None]
        if 0 < len(others) == len(self._replicas) and not any(map(stream.fits, others)):
            self._fail(
                stream, UnavailableError(f"{reason.message}, and came back with another model or build: start again")
            )
        elif not self._resume_seconds:
            self._fail(stream, reason)

    def _expire(self, stream: ResumableStream) -> None:
        """A deadline has passed: the stream ends wherever it is."""
        if stream.replica is not None:
            stream.replica.cancel(stream)
        reason = stream.reason or _unreachable()
        message = f"{reason.message}, and the request did not go on within {self._resume_seconds:g} s"
        self._fail(stream, UnavailableError(message, retry_after=RETRY_SECONDS))

    def _convict(self, stream: ResumableStream) -> None:
        times = self._quarantine.lone_losses(stream)
        sizes = len(stream.request.prompt_token_ids), len(stream.received)
        _log.error("the verify service went away %d times while a request of %d + %d tokens ran alone", times, *sizes)
        self._fail(stream, InternalError(f"the verify service went away {times} times while this request ran alone"))

    def _fail(self, stream: ResumableStream, error: SlipstreamError) -> None:
        self._parked.discard(stream)
        self._settle(stream)
        stream.fail(error)

    def _settle(self, stream: ResumableStream) -> None:
        """A stream goes on, or is over: nothing is held against it any more."""
        self._quarantine.clear(stream, time.monotonic())
        self._deadlines.stop(stream)
        if stream.paused_at:
            self._metrics.paused.dec()
            stream.resume()


def _unreachable() -> UnavailableError:
    return UnavailableError("no verify service is ready; retry later", retry_after=RETRY_SECONDS)
