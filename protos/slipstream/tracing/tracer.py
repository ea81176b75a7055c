"""What services know of tracing: spans that say where a request's time went, or say nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol

from slipstream.request_context import NO_CONTEXT, RequestContext

Value = str | bool | int | float | Sequence[str] | None
"""Of an attribute; None: it has none, and is left out."""
Attributes = Mapping[str, Value]
NONE: Final[Attributes] = MappingProxyType({})


class Span(Protocol):
    """One service's part of a request. All times are time.monotonic() in seconds; nothing raises, and nothing waits."""

    @property
    def recording(self) -> bool:
        """Whether anything that is said of it will be read: not where nobody traces, or the sampler left it out."""
        ...

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits while it records, else empty."""
        ...

    @property
    def context(self) -> RequestContext:
        """What services further on are to be told, to whose spans this one is the parent."""
        ...

    def add_event(self, name: str, at: float, attributes: Attributes = NONE) -> None:
        """Something happened at that time."""
        ...

    def end(self, attributes: Attributes = NONE, *, name: str = "", failed: bool = False) -> None:
        """It is over. `name` takes the place of its name, unless empty; `failed` says that the service is to blame."""
        ...


class Tracer(Protocol):
    """Makes the spans of one service."""

    def start(self, name: str, context: RequestContext, begun: float) -> Span:
        """A span since `begun`, time.monotonic() in seconds; its parent is what `context` names, if it names any."""
        ...

    def close(self, seconds: float) -> None:
        """Send what has not been sent, for as long at most. Waits."""
        ...


class NullSpan:
    """Says nothing, and hands on what its caller was told: services further on may trace all the same."""

    __slots__ = ("context",)

    recording = False
    trace_id = ""

    def __init__(self, context: RequestContext) -> None:
        self.context = context

    def add_event(self, name: str, at: float, attributes: Attributes = NONE) -> None:
        return None

    def end(self, attributes: Attributes = NONE, *, name: str = "", failed: bool = False) -> None:
        return None


class NullTracer:
    """Traces nothing."""

    __slots__ = ()

    def start(self, name: str, context: RequestContext, begun: float) -> NullSpan:
        return NullSpan(context)

    def close(self, seconds: float) -> None:
        return None


NO_SPAN: Final = NullSpan(NO_CONTEXT)
