"""How many choices are traced at a time: traces cost their readers' gateway time and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gateway.core.request import ChoiceRequest
from slipstream.rpc.errors import InvalidArgumentError, ResourceExhaustedError

FIELD: Final = "speculation.trace"


class TracedChoices:
    """Counts them against the operator's limit. Belongs to the event loop."""

    __slots__ = ("_count", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0

    def check(self, requests: Sequence[ChoiceRequest]) -> None:
        """InvalidArgumentError for a request that can never be traced here."""
        asked = _traced(requests)
        if asked and not self._most:
            raise InvalidArgumentError(f"{FIELD}: this server traces no requests", field=FIELD)
        if asked > self._most:
            reason = f"{FIELD}: at most {self._most} choices are traced at a time, the request has {asked}"
            raise InvalidArgumentError(reason, field=FIELD)

    def begin(self, requests: Sequence[ChoiceRequest]) -> None:
        """Count the choices of a request in. ResourceExhaustedError beyond the limit."""
        asked = _traced(requests)
        if asked and self._count + asked > self._most:
            reason = f"{FIELD}: at most {self._most} choices are traced at a time, {self._count} are; retry later"
            raise ResourceExhaustedError(reason, field=FIELD)
        self._count += asked

    def end(self, requests: Sequence[ChoiceRequest]) -> None:
        """Count them out."""
        self._count -= _traced(requests)


def _traced(requests: Sequence[ChoiceRequest]) -> int:
    speculation = requests[0].speculation  # which all choices share
    return len(requests) if speculation is not None and speculation.trace else 0
