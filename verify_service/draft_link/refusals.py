"""Proposers that draft services have and that do not draft here, and why: what operators are told of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

from slipstream.rpc.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
    SlipstreamError,
)
from verify_service.draft_link.attachment import MAX_OFFERS
from verify_service.draft_link.records import AttachRequest, Unfit

KEPT_SECONDS = 60.0
"""How long a refusal is told of after a draft service's last attempt; ours tries again every ten seconds."""
MAX_SOURCES = 32
"""Draft services whose refusals are kept."""
MAX_REASON = 300
"""Characters of a reason that are kept."""
_LASTING = (FailedPreconditionError, InvalidArgumentError, ResourceExhaustedError)
"""Refusals that the same request meets again; those for a wrong token tell nobody anything."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A proposer that does not draft, and why; `name`, `address` and `process_id` are the draft service's words."""

    proposer: str
    reason: str
    name: str
    address: str
    process_id: int


class Refusals:
    """Refused attachments by draft service. For any thread; `clock` gives seconds."""

    __slots__ = ("_by_source", "_clock", "_lock")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._by_source: dict[str, tuple[float, tuple[Refusal, ...]]] = {}

    @contextmanager
    def attempt(self, request: AttachRequest) -> Iterator[None]:
        """A draft service is attached within; if that is refused for good, none of its proposers drafts."""
        try:
            yield
        except _LASTING as error:
            self._note(request, error)
            raise
        with self._lock:
            self._by_source.pop(_source(request), None)

    def known(self, attached: Iterable[AttachRequest]) -> list[Refusal]:
        """Those of late, and proposers of attached draft services that do not fit."""
        now = self._clock()
        with self._lock:
            for source in [each for each, (at, _) in self._by_source.items() if now - at >= KEPT_SECONDS]:
                del self._by_source[source]
            refused = [refusal for _, noted in self._by_source.values() for refusal in noted]
        return refused + [refusal for request in attached for refusal in _named(request, request.unfit)]

    def _note(self, request: AttachRequest, error: SlipstreamError) -> None:
        offered = tuple(Unfit(offer.name, error.message) for offer in request.offers[:MAX_OFFERS])
        noted = _named(request, (*request.unfit[:MAX_OFFERS], *offered))
        with self._lock:
            self._by_source.pop(_source(request), None)
            self._by_source[_source(request)] = self._clock(), tuple(noted)
            while len(self._by_source) > MAX_SOURCES:
                del self._by_source[next(iter(self._by_source))]


def _source(request: AttachRequest) -> str:
    return request.address or f"{request.name} {request.process_id}"


def _named(request: AttachRequest, unfit: Iterable[Unfit]) -> list[Refusal]:
    return [
        Refusal(_shown(each.name), _shown(each.reason), request.name, request.address, request.process_id)
        for each in unfit
    ]


def _shown(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text[:MAX_REASON])
