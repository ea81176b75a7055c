"""The id of an HTTP request: the caller's own, if it is well-formed, or a new one. Every answer has it as a header.

The HTTP protocol puts it among the headers of the request's answer before the application begins, so that no middleware
has to look at what the application sends.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from typing import Final

from starlette.types import Scope

HEADER: Final = b"x-request-id"
STATE_KEY: Final = "request_id"
"""Of the ASGI scope's state, which Starlette shows as `request.state.request_id`."""

_WELL_FORMED: Final = re.compile(rb"[A-Za-z0-9_.:/+=@,;~-]{1,128}")
"""One word, which can neither end a line of a log nor a quoted string in it."""


def choose(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The id that a request with these headers has; their names are in lower case. A new one where none is usable."""
    given = [value for name, value in headers if name == HEADER]
    if len(given) == 1 and _WELL_FORMED.fullmatch(given[0]):
        return given[0].decode("ascii")
    return f"{random.getrandbits(128):032x}"  # an id need not be hard to guess, and costs no system call


def of(scope: Scope) -> str:
    """The id of the request of `scope`; empty if it came by other ways than the gateway's HTTP protocol."""
    found: str = scope.get("state", {}).get(STATE_KEY, "")
    return found
