"""Quarantine of poison requests: those that ran when a verify service crashed are tried in ever smaller groups."""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from gateway.replicas.resumable_stream import ResumableStream

SPLIT: Final = 8
"""Parts of a group of suspects that are tried one after the other. A clean part costs the time to its first tokens, a
loss costs a restart: so a killer among n is found in log_8(n) losses rather than in log_2(n)."""

LONE_LOSSES: Final = 3
"""Losses in a row with nothing else at the service, and without a token, that it takes to convict a request. One fewer
where others have had tokens in between: a service that ends as soon as it is there would not have given them any."""

CONVICTING_CHANCE: Final = 1e-3
"""The chance of being hit so often by losses that have nothing to do with the request, below which it is convicted."""

RATE_WINDOWS: Final = (15.0, 60.0, 120.0)
"""Seconds over which losses are counted, for how often a service goes without the request; the last is the memory."""

MEMORY_SECONDS: Final = 600.0
"""How long a suspect that is over without a token is remembered, as its client may repeat it."""

MOST_REMEMBERED: Final = 256

NO_LIMIT: Final = 1 << 30


class Entry(enum.Enum):
    """Whether, and how, a stream may be sent to a service."""

    OPEN = enum.auto()
    ALONE = enum.auto()  # once the streams there have been withdrawn
    LATER = enum.auto()


@dataclass(slots=True)
class _Record:
    group: int = NO_LIMIT  # size of the smallest group that it was blamed in
    ran: float = 0.0  # seconds at the service when it was blamed last
    blamed_at: list[float] = field(default_factory=list)
    lone: list[float] = field(default_factory=list)  # seconds to each loss with nothing else at the service
    others_before: int = 0  # streams that had yielded when the first of these came
    convicted: int = 0  # hash of the whole request, but for its seed


class Quarantine:
    """Streams blamed for crashes since their last token, and what each may be sent along with.

    Blame falls on streams that had begun to run and yielded no token since they were sent. A blamed stream is tried
    with an eighth of the group it was blamed in: the service takes it only while no more streams than that have yet to
    yield a token there. A group of one is tried with nothing else at the service at all, and only losses of that kind
    convict, two or three of them: with a chance below 0.1 % that losses at the recent rate, counted without those it
    was blamed for, hit trials as long as its own. A token clears a stream; one that is over without a token is
    remembered by its prompt, so that a client which repeats it does not start from innocence each time. One that was
    convicted is not tried again in the same form while it is remembered.

    A trial holds others for `trial_seconds` at most; 0: there are no trials. Times are time.monotonic() in seconds.
    """

    __slots__ = ("_former", "_losses", "_records", "_trial_seconds", "_yields")

    def __init__(self, trial_seconds: float) -> None:
        self._trial_seconds = trial_seconds
        self._records: dict[ResumableStream, _Record] = {}
        self._former: dict[int, tuple[float, _Record]] = {}  # by the prompt's hash, the latest last
        self._losses: deque[float] = deque(maxlen=256)
        self._yields = 0

    def __len__(self) -> int:
        return len(self._records)

    def record_loss(self, streams: Sequence[ResumableStream], *, yielded: bool, now: float) -> None:
        """Record that a service has gone with these streams; `yielded`: its session had carried a token of any."""
        self._losses.append(now)
        blamed = self._blamed(streams, yielded=yielded)
        for stream in blamed:
            record = self._records.setdefault(stream, _Record())
            record.group = min(record.group, len(blamed))
            record.ran = now - stream.sent_at
            record.blamed_at.append(now)
            if len(streams) == 1:
                record.others_before = record.others_before if record.lone else self._yields
                record.lone.append(record.ran)
        for stream in streams:
            if stream.yielded:
                self.clear(stream, now)

    def recall(self, streams: Sequence[ResumableStream], now: float) -> None:
        """Quarantine the new streams that repeat a quarantined one."""
        while self._former and now - next(iter(self._former.values()))[0] >= MEMORY_SECONDS:
            del self._former[next(iter(self._former))]
        for stream in streams if self._former else ():
            _, record = self._former.get(_prompt_hash(stream), (now, None))
            if record is not None:
                self._records[stream] = replace(record, blamed_at=[*record.blamed_at], lone=[*record.lone])

    def was_convicted(self, streams: Sequence[ResumableStream], now: float) -> bool:
        """Whether a stream repeats a convicted one, its seed aside; others of the same prompt are tried as suspects."""
        for stream in streams if self._former else ():
            at, record = self._former.get(_prompt_hash(stream), (now, None))
            if record is not None and now - at < MEMORY_SECONDS and record.convicted == _request_hash(stream):
                return True
        return False

    def progress(self, stream: ResumableStream, now: float) -> None:
        """Record a stream's first token since it was sent; releases it."""
        self._yields += 1
        self.clear(stream, now)

    def clear(self, stream: ResumableStream, now: float) -> None:
        """Release a stream: a token of it has come, or it is over."""
        record = self._records.pop(stream, None)
        if record is not None:
            self._former.pop(key := _prompt_hash(stream), None)
            if not stream.yielded:
                self._former[key] = now, record
                if len(self._former) > MOST_REMEMBERED:
                    del self._former[next(iter(self._former))]

    def lone_losses(self, stream: ResumableStream) -> int:
        """Return how often the service went while it ran nothing else."""
        record = self._records.get(stream)
        return 0 if record is None else len(record.lone)

    def convicts(self, stream: ResumableStream, now: float) -> bool:
        """Return whether the stream is the cause beyond doubt."""
        record = self._records.get(stream)
        if record is None or len(record.lone) < LONE_LOSSES - (self._yields > record.others_before):
            return False
        rate = self._rate_without(record, now)
        beyond_doubt = math.prod(-math.expm1(-rate * seconds) for seconds in record.lone) < CONVICTING_CHANCE
        if beyond_doubt:
            record.convicted = _request_hash(stream)
        return beyond_doubt

    def priority(self, stream: ResumableStream) -> tuple[int, float]:
        """Return the sort key: the least suspected first; among equals the one that ran shortest."""
        record = self._records.get(stream)
        return (-NO_LIMIT, 0.0) if record is None else (-self._limit(stream), record.ran)

    def entry(self, stream: ResumableStream, present: Sequence[ResumableStream], now: float, count: int = 1) -> Entry:
        """Whether `count` streams such as this one may join those `present` at a service."""
        if not self._records or not self._trial_seconds:
            return Entry.OPEN
        untried = [each for each in present if not each.yielded and now - each.sent_at < self._trial_seconds]
        if len(untried) + count > min(map(self._limit, (stream, *untried))):
            return Entry.LATER
        alone = self._is_alone(stream) and all(each.yielded for each in present)
        return Entry.ALONE if alone and present else Entry.OPEN

    def _blamed(self, streams: Sequence[ResumableStream], *, yielded: bool) -> list[ResumableStream]:
        """Those that ran without a token.

        The news that a stream has begun may be lost with the service. Where it has come of none, those suspected
        already are blamed, or else, if nothing at all came from that session, all of it.
        """
        fresh = [stream for stream in streams if not stream.yielded]
        known = [stream for stream in fresh if stream in self._records]
        begun = [stream for stream in fresh if stream.begun]
        return begun or known or ([] if yielded else fresh)

    def _limit(self, stream: ResumableStream) -> int:
        """Most streams without a token, this one included, that a service may have while it is tried."""
        record = self._records.get(stream)
        return NO_LIMIT if record is None else max(1, record.group // SPLIT)

    def _is_alone(self, stream: ResumableStream) -> bool:
        record = self._records.get(stream)
        return record is not None and record.group == 1

    def _rate_without(self, record: _Record, now: float) -> float:
        """Losses a second that it was not blamed for: the highest of all windows, and never none."""
        others = [at for at in self._losses if at not in record.blamed_at]
        counts = [(sum(now - at <= seconds for at in others), seconds) for seconds in RATE_WINDOWS]
        return max(1.0 / RATE_WINDOWS[-1], *(count / seconds for count, seconds in counts))


def _prompt_hash(stream: ResumableStream) -> int:
    request = stream.request
    return hash((request.tenant, request.prompt_wire or tuple(request.prompt_token_ids)))


def _request_hash(stream: ResumableStream) -> int:
    request = stream.request
    return hash(
        (_prompt_hash(stream), repr(replace(request.sampling, seed=0)), request.speculation, request.adapter_id)
    )
