"""What names a request in the logs and traces of every service. It decides on no token."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_ID: Final = re.compile(r"[A-Za-z0-9_.:/+=@,;~-]{1,128}", re.ASCII)
_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_MOST_TRACESTATE: Final = 512
"""Characters of a tracestate that everyone must carry (W3C Trace Context, section 3.3.1.5)."""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """`request_id` is the X-Request-Id; the other two are of the span that is the parent, as W3C's headers have them.

    All may be empty.
    """

    request_id: str = ""
    traceparent: str = ""
    tracestate: str = ""


NO_CONTEXT: Final = RequestContext()


def is_request_id(text: str) -> bool:
    """Whether a text is one word, which can neither end a line of a log nor a quoted string in it; at most 128 long."""
    return _ID.fullmatch(text) is not None


def checked(request_id: str, traceparent: str, tracestate: str) -> RequestContext:
    """What is well-formed of what somebody sent; the rest is dropped, as it must not fail a request.

    A tracestate without a traceparent means nothing. See W3C Trace Context, sections 3.2 and 3.3.
    """
    parent = traceparent.strip() if is_traceparent(traceparent.strip()) else ""
    state = tracestate.strip() if parent and _is_tracestate(tracestate) else ""
    return RequestContext(request_id if is_request_id(request_id) else "", parent, state)


def is_traceparent(text: str) -> bool:
    """Whether a text names a trace and a span; only later versions than 00 may have more to say."""
    found = _TRACEPARENT.fullmatch(text) if len(text) <= _MOST_TRACESTATE else None
    if found is None or found[1] == "ff" or (found[1] == "00" and found[5]):
        return False
    return int(found[2], 16) != 0 and int(found[3], 16) != 0


def _is_tracestate(text: str) -> bool:
    return len(text) <= _MOST_TRACESTATE and text.isascii() and text.isprintable()
