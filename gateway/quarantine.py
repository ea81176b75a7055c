"""Which request ends the verify service: those that ran when it went, in ever smaller groups until one runs alone."""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from gateway.resumable_stream import ResumableStream

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
    """Whether a ticket may be sent to a service."""

    OPEN = enum.auto()
    ALONE = enum.auto()  # once the tickets there have been withdrawn
    LATER = enum.auto()


@dataclass(slots=True)
class _Record:
    group: int = NO_LIMIT  # size of the smallest group that it was blamed in
    ran: float = 0.0  # seconds at the service when it was blamed last
    blamed_at: list[float] = field(default_factory=list)
    lone: list[float] = field(default_factory=list)  # seconds to each loss with nothing else at the service
    others_before: int = 0  # tickets that had yielded when the first of these came
    convicted: int = 0  # hash of the whole request, but for its seed


class CrashSuspects:
    """Tickets blamed for losses since their last token, and what each may be sent along with.

    Blame falls on tickets that had begun to run and yielded no token since they were sent. A blamed ticket is tried
    with an eighth of the group it was blamed in: the service takes it only while no more tickets than that have yet to
    yield a token there. A group of one is tried with nothing else at the service at all, and only losses of that kind
    convict, two or three of them: with a chance below 0.1 % that losses at the recent rate, counted without those it
    was blamed for, hit trials as long as its own. A token clears a ticket; one that is over without a token is
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

    def lost(self, tickets: Sequence[ResumableStream], *, yielded: bool, now: float) -> None:
        """A service has gone with these tickets; `yielded`: its session had carried a token of any ticket."""
        self._losses.append(now)
        blamed = self._blamed(tickets, yielded=yielded)
        for ticket in blamed:
            record = self._records.setdefault(ticket, _Record())
            record.group = min(record.group, len(blamed))
            record.ran = now - ticket.sent_at
            record.blamed_at.append(now)
            if len(tickets) == 1:
                record.others_before = record.others_before if record.lone else self._yields
                record.lone.append(record.ran)
        for ticket in tickets:
            if ticket.yielded:
                self.clear(ticket, now)

    def recall(self, tickets: Sequence[ResumableStream], now: float) -> None:
        """New tickets that repeat suspects are suspects."""
        while self._former and now - next(iter(self._former.values()))[0] >= MEMORY_SECONDS:
            del self._former[next(iter(self._former))]
        for ticket in tickets if self._former else ():
            _, record = self._former.get(_prompt_hash(ticket), (now, None))
            if record is not None:
                self._records[ticket] = replace(record, blamed_at=[*record.blamed_at], lone=[*record.lone])

    def was_convicted(self, tickets: Sequence[ResumableStream], now: float) -> bool:
        """Whether a ticket repeats a convicted one, its seed aside; others of the same prompt are tried as suspects."""
        for ticket in tickets if self._former else ():
            at, record = self._former.get(_prompt_hash(ticket), (now, None))
            if record is not None and now - at < MEMORY_SECONDS and record.convicted == _request_hash(ticket):
                return True
        return False

    def progress(self, ticket: ResumableStream, now: float) -> None:
        """The first token of a ticket since it was sent has come."""
        self._yields += 1
        self.clear(ticket, now)

    def clear(self, ticket: ResumableStream, now: float) -> None:
        """A token of it has come, or it is over."""
        record = self._records.pop(ticket, None)
        if record is not None:
            self._former.pop(key := _prompt_hash(ticket), None)
            if not ticket.yielded:
                self._former[key] = now, record
                if len(self._former) > MOST_REMEMBERED:
                    del self._former[next(iter(self._former))]

    def lone_losses(self, ticket: ResumableStream) -> int:
        """How often the service went while it worked on nothing else."""
        record = self._records.get(ticket)
        return 0 if record is None else len(record.lone)

    def convicts(self, ticket: ResumableStream, now: float) -> bool:
        """Whether it is the cause beyond doubt."""
        record = self._records.get(ticket)
        if record is None or len(record.lone) < LONE_LOSSES - (self._yields > record.others_before):
            return False
        rate = self._rate_without(record, now)
        beyond_doubt = math.prod(-math.expm1(-rate * seconds) for seconds in record.lone) < CONVICTING_CHANCE
        if beyond_doubt:
            record.convicted = _request_hash(ticket)
        return beyond_doubt

    def order(self, ticket: ResumableStream) -> tuple[int, float]:
        """Sort key: the least suspected first; among equals the one that ran shortest, which others lasted longer."""
        record = self._records.get(ticket)
        return (-NO_LIMIT, 0.0) if record is None else (-self._limit(ticket), record.ran)

    def entry(self, ticket: ResumableStream, present: Sequence[ResumableStream], now: float, count: int = 1) -> Entry:
        """Whether `count` tickets such as this one may join those `present` at a service."""
        if not self._records or not self._trial_seconds:
            return Entry.OPEN
        untried = [each for each in present if not each.yielded and now - each.sent_at < self._trial_seconds]
        if len(untried) + count > min(map(self._limit, (ticket, *untried))):
            return Entry.LATER
        alone = self._is_alone(ticket) and all(each.yielded for each in present)
        return Entry.ALONE if alone and present else Entry.OPEN

    def _blamed(self, tickets: Sequence[ResumableStream], *, yielded: bool) -> list[ResumableStream]:
        """Those that ran without a token.

        The news that a ticket has begun may be lost with the service. Where it has come of none, those suspected
        already are blamed, or else, if nothing at all came from that session, all of it.
        """
        fresh = [ticket for ticket in tickets if not ticket.yielded]
        known = [ticket for ticket in fresh if ticket in self._records]
        begun = [ticket for ticket in fresh if ticket.begun]
        return begun or known or ([] if yielded else fresh)

    def _limit(self, ticket: ResumableStream) -> int:
        """Most tickets without a token, this one included, that a service may have while it is tried."""
        record = self._records.get(ticket)
        return NO_LIMIT if record is None else max(1, record.group // SPLIT)

    def _is_alone(self, ticket: ResumableStream) -> bool:
        record = self._records.get(ticket)
        return record is not None and record.group == 1

    def _rate_without(self, record: _Record, now: float) -> float:
        """Losses a second that it was not blamed for: the highest of all windows, and never none."""
        others = [at for at in self._losses if at not in record.blamed_at]
        counts = [(sum(now - at <= seconds for at in others), seconds) for seconds in RATE_WINDOWS]
        return max(1.0 / RATE_WINDOWS[-1], *(count / seconds for count, seconds in counts))


def _prompt_hash(ticket: ResumableStream) -> int:
    order = ticket.order
    return hash((order.tenant, order.prompt_wire or tuple(order.prompt_token_ids)))


def _request_hash(ticket: ResumableStream) -> int:
    order = ticket.order
    return hash((_prompt_hash(ticket), repr(replace(order.sampling, seed=0)), order.speculation, order.adapter_id))
