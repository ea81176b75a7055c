"""The context of a gRPC call whose other end is the fuzzer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import grpc

from fuzz.target import BrokenError

Metadata = Sequence[tuple[str, str | bytes]]


class Aborted(grpc.aio.AbortError):
    """The handler has ended the call with a status."""


class CallContext:
    """What handlers use of a context. `code` is the status that the call was ended with, None for OK."""

    def __init__(self, metadata: Metadata = (), peer: str = "ipv4:127.0.0.1:4711") -> None:
        self._metadata, self._peer = metadata, peer
        self.code: grpc.StatusCode | None = None
        self.details = ""
        self.written: list[bytes] = []

    def invocation_metadata(self) -> Metadata:
        return self._metadata

    def peer(self) -> str:
        return self._peer

    async def send_initial_metadata(self, metadata: Metadata) -> None:
        return None

    async def write(self, message: bytes) -> None:
        self.written.append(message)

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing: Any = ()) -> NoReturn:
        """As grpc's: raises, once, with what can be sent."""
        if self.code is not None:
            raise BrokenError(f"ended twice, {self.code} and {code}")
        self.code, self.details = code, details
        details.encode("utf-8", "surrogatepass" if code is None else "strict")
        for key, value in trailing:
            if not (isinstance(value, str) and value.isascii() and value.isprintable() and key == key.lower()):
                raise BrokenError(f"trailing metadata {key}: {value!r}")
        raise Aborted


def check_code(context: CallContext, allowed: Sequence[grpc.StatusCode]) -> None:
    """BrokenError if the call ended otherwise than with OK or one of these."""
    if context.code is not None and context.code not in allowed:
        raise BrokenError(f"ended with {context.code.name}: {context.details}")
