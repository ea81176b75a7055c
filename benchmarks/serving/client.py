"""A connection to an OpenAI server on which one request after another is put, over a plain socket.

What comes is stamped and kept as bytes; it is read as JSON once the load is over, so that reading delays no stamp.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

from benchmarks.serving.answer import MESSAGE_SHOWN, Exchange
from benchmarks.serving.sse import OK, HttpError, ResponseReader

PATH = "/v1/completions"
_PIECE = 1 << 16


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where requests go. `patience`: seconds that one may take from its sending to its end."""

    host: str
    port: int
    path: str = PATH
    api_key: str = ""
    patience: float = 600.0

    @classmethod
    def of(cls, url: str, *, api_key: str = "", patience: float = 600.0) -> ServerAddress:
        """Of a base URL with or without /v1. ValueError for any but http://HOST[:PORT]."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"must be http://HOST:PORT, got {url!r}")
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname, parts.port or 80, prefix + PATH, api_key, patience)

    def head(self, length: int) -> bytes:
        """The head of a request with a body of so many bytes."""
        key = f"authorization: Bearer {self.api_key}\r\n" if self.api_key else ""
        return (
            f"POST {self.path} HTTP/1.1\r\nhost: {self.host}:{self.port}\r\ncontent-type: application/json\r\n"
            f"{key}content-length: {length}\r\n\r\n"
        ).encode()


class _StaleError(Exception):
    """The server had closed an idle connection before the request came."""


class Connection:
    """One connection, opened when it is needed and kept between requests."""

    __slots__ = ("_reader", "_target", "_writer")

    def __init__(self, target: ServerAddress) -> None:
        self._target = target
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, prompt: int, body: bytes, due: float) -> Exchange:
        """Put a request and take in all that comes; how it failed stands in the exchange."""
        exchange = Exchange(prompt, due, time.perf_counter())
        try:
            async with asyncio.timeout(self._target.patience):
                try:
                    await self._run(exchange, body)
                except _StaleError:
                    await self._run(exchange, body)
        except TimeoutError:
            exchange.failure = f"not done after {self._target.patience:g} s"
        except (OSError, HttpError) as error:
            exchange.failure = f"connection: {error}"[:MESSAGE_SHOWN]
        exchange.ended = time.perf_counter()
        if exchange.failure:
            self.close()
        return exchange

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None

    async def _run(self, exchange: Exchange, body: bytes) -> None:
        kept = self._writer is not None
        if self._reader is None or self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(self._target.host, self._target.port)
        response = ResponseReader()
        try:
            self._writer.write(self._target.head(len(body)) + body)
            while not response.done:
                data = await self._reader.read(_PIECE)
                at = time.perf_counter()
                if not data:
                    response.end()
                exchange.events += [(at, event) for event in response.feed(data)]
        except (ConnectionError, HttpError):
            self.close()
            if kept and not response.status:
                raise _StaleError from None
            raise
        if response.status != OK:
            said = response.body[:MESSAGE_SHOWN].decode(errors="replace")
            exchange.failure = f"HTTP {response.status}: {said}"
        if not response.reusable:
            self.close()
