"""Cross-origin resource sharing: which web pages a browser lets use this server.

Protocol: https://fetch.spec.whatwg.org/#http-cors-protocol
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

_METHODS: Final = ("GET", "POST")
_EXPOSED: Final = ("X-Request-Id", "Retry-After")
"""Headers of answers that pages may read, beside those that they always may."""


def with_cors(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """`app`, whose answers pages of `origins` may read; `*` stands for all.

    Preflight requests are answered without `app`: they carry no key, and their answer says nothing but what is allowed.
    Cookies are not: keys travel in a header of their own.
    """
    return CORSMiddleware(
        app, allow_origins=origins, allow_methods=_METHODS, allow_headers=("*",), expose_headers=_EXPOSED
    )
