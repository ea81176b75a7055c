"""The id of a request: the caller's own, if it is well-formed, or a new one. Every answer has it, in HTTP as a header.

The HTTP protocol puts it among the headers of the request's answer before the application begins, so that no middleware
has to look at what the application sends. Beside it callers may name the trace that the request belongs to.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Final

from starlette.types import Scope

from slipstream.request_context import RequestContext, checked, is_request_id

HEADER: Final = b"x-request-id"
STATE_KEY: Final = "request_id"
"""Of the ASGI scope's state, which Starlette shows as `request.state.request_id`."""
METADATA_KEY: Final = "x-request-id"
"""By which a caller of the gRPC API names its request."""
_PARENT: Final = b"traceparent"
_STATE: Final = b"tracestate"


def choose(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The id that a request with these headers has; their names are in lower case. A new one where none is usable."""
    return _chosen([value.decode("latin-1") for name, value in headers if name == HEADER])


def of(scope: Scope) -> str:
    """The id of the request of `scope`; empty if it came by other ways than the gateway's HTTP protocol."""
    found: str = scope.get("state", {}).get(STATE_KEY, "")
    return found


def context_of(scope: Scope) -> RequestContext:
    """The id of the request of `scope`, and its parent span, if its headers name one."""
    parents, states = [], []
    for name, value in scope["headers"]:
        if name == _PARENT:
            parents.append(value.decode("latin-1"))
        elif name == _STATE:
            states.append(value.decode("latin-1"))
    return checked(of(scope), parents[0] if len(parents) == 1 else "", ",".join(states))


def context_of_metadata(metadata: Iterable[tuple[str, str | bytes]]) -> RequestContext:
    """The same of a gRPC call, with a new id where the caller gives none that is usable."""
    found: dict[str, list[str]] = {}
    for name, value in metadata:
        if isinstance(value, str):
            found.setdefault(name, []).append(value)
    parents = found.get(_PARENT.decode(), [])
    states = ",".join(found.get(_STATE.decode(), []))
    return checked(_chosen(found.get(METADATA_KEY, [])), parents[0] if len(parents) == 1 else "", states)


def _chosen(given: list[str]) -> str:
    if len(given) == 1 and is_request_id(given[0]):
        return given[0]
    return f"{random.getrandbits(128):032x}"  # an id need not be hard to guess, and costs no system call
