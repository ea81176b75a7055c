"""Reads one HTTP/1.1 response of server-sent events, in whatever pieces its bytes come."""

from __future__ import annotations

OK = 200
_DATA = b"data:"
_LINE_END = b"\r\n"


class HttpError(ValueError):
    """Bytes that are no HTTP/1.1 response, or one that ended too early."""


class ResponseReader:
    """One response. `status` is 0 until its head is complete; `body` holds what was said under another status than 200.

    `done`: the response is complete. `reusable`: another request may follow on the same connection.
    """

    __slots__ = ("_buffer", "_chunked", "_last", "_left", "_line", "body", "done", "reusable", "status")

    def __init__(self) -> None:
        self.status = 0
        self.done = False
        self.reusable = True
        self.body = bytearray()
        self._buffer = bytearray()
        self._line = bytearray()  # of an event whose end has not come
        self._chunked = False
        self._last = False  # the chunk of size 0 was read, trailers follow
        self._left: int | None = None  # bytes of the chunk or body; None: until the connection closes

    def feed(self, data: bytes) -> list[bytes]:
        """Take the next bytes; the data of the events that they complete, without the field's name. HttpError."""
        self._buffer += data
        if not self.status and not self._read_head():
            return []
        body = self._read_chunks() if self._chunked else self._read_plain()
        if self.status != OK:
            self.body += body
            return []
        return self._events(body)

    def end(self) -> None:
        """The connection was closed. HttpError unless that is how this response ends."""
        if not self.done and (not self.status or self._chunked or self._left is not None):
            raise HttpError("the connection was closed in the middle of a response")
        self.done, self.reusable = True, False

    def _read_head(self) -> bool:
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if not end:
            return False
        self._buffer = rest
        first, *lines = head.split(_LINE_END)
        parts = first.split(b" ", 2)
        if len(parts) < 2 or not parts[0].startswith(b"HTTP/1.") or not parts[1].isdigit():
            raise HttpError(f"no HTTP/1.1 response: {bytes(first[:80])!r}")
        status = int(parts[1])
        if status < OK:  # an interim response
            return self._read_head()
        self.status = status
        self._read_fields(lines)
        return True

    def _read_fields(self, lines: list[bytearray]) -> None:
        fields = {
            bytes(name).lower(): bytes(value).strip().lower() for name, _, value in (x.partition(b":") for x in lines)
        }
        self._chunked = b"chunked" in fields.get(b"transfer-encoding", b"")
        self.reusable = fields.get(b"connection") != b"close"
        if self._chunked:
            self._left = 0
        elif b"content-length" in fields:
            self._left = _number(fields[b"content-length"], 10)
            self.done = not self._left

    def _read_plain(self) -> bytes:
        size = len(self._buffer) if self._left is None else min(self._left, len(self._buffer))
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        if self._left is not None:
            self._left -= size
            self.done = not self._left
        return taken

    def _read_chunks(self) -> bytes:
        taken = bytearray()
        while self._buffer and not self.done:
            if self._left:
                part = self._buffer[: self._left]
                del self._buffer[: len(part)]
                self._left -= len(part)
                taken += part
                continue
            length = self._buffer.find(_LINE_END)
            if length < 0:
                break
            line = bytes(self._buffer[:length])
            del self._buffer[: length + len(_LINE_END)]
            if self._last:
                self.done = not line  # the end of the trailers
            elif line:  # an empty one ends the chunk before
                self._left = _number(line.partition(b";")[0], 16)
                self._last = not self._left
        return bytes(taken)

    def _events(self, body: bytes) -> list[bytes]:
        self._line += body
        *lines, self._line = self._line.split(b"\n")
        return [bytes(line[len(_DATA) :]).strip() for line in lines if line.startswith(_DATA)]


def _number(text: bytes, base: int) -> int:
    try:
        return int(text, base)
    except ValueError as error:
        raise HttpError(f"no length: {text[:80]!r}") from error
