"""HTTP answers as a strict client reads them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from fuzz.target import BrokenError

_STATUS_LINE = re.compile(rb"HTTP/1\.1 ([1-5][0-9]{2}) [\x20-\x7e]*")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00\r\n]*)")


class Answer(NamedTuple):
    status: int
    headers: dict[bytes, bytes]
    body: bytes


def read_answers(data: bytes, methods: Sequence[str]) -> list[Answer]:
    """All answers of a connection that is closed. BrokenError if they are not well-formed and whole.

    `methods` are those of the requests; where one is HEAD, an answer may have a body or none.
    """
    answers: list[Answer] = []
    at = 0
    while at < len(data):
        answer, at = _read_one(data, at, methods[len(answers)] if len(answers) < len(methods) else "")
        if answer.status >= 200:
            answers.append(answer)
    return answers


def _read_one(data: bytes, at: int, method: str) -> tuple[Answer, int]:
    end = data.find(b"\r\n\r\n", at)
    if end < 0:
        raise BrokenError(f"a head without an end: {data[at : at + 200]!r}")
    lines = data[at:end].split(b"\r\n")
    line = _STATUS_LINE.fullmatch(lines[0])
    if line is None:
        raise BrokenError(f"no status line: {lines[0]!r}")
    headers: dict[bytes, bytes] = {}
    for entry in lines[1:]:
        header = _HEADER.fullmatch(entry)
        if header is None or header[1].lower() in headers:
            raise BrokenError(f"no header, or one twice: {entry!r}")
        headers[header[1].lower()] = header[2]
    status, at = int(line[1]), end + 4
    bodiless = status < 200 or status in (204, 304)
    if bodiless or (method == "HEAD" and (at == len(data) or data.startswith(b"HTTP/1.1 ", at))):
        return Answer(status, headers, b""), at
    body, at = _read_body(data, at, headers)
    return Answer(status, headers, body), at


def _read_body(data: bytes, at: int, headers: dict[bytes, bytes]) -> tuple[bytes, int]:
    if b"content-length" in headers:
        size = int(headers[b"content-length"])
        if len(data) - at < size:
            raise BrokenError(f"a body of {len(data) - at} bytes of {size}")
        return data[at : at + size], at + size
    if headers.get(b"transfer-encoding", b"").lower() != b"chunked":
        return data[at:], len(data)
    body = b""
    while True:
        end = data.find(b"\r\n", at)
        if end < 0 or not re.fullmatch(rb"[0-9A-Fa-f]+", data[at:end]):
            raise BrokenError(f"no chunk: {data[at : at + 100]!r}")
        size = int(data[at:end], 16)
        at = end + 2
        if data[at + size : at + size + 2] != b"\r\n":
            raise BrokenError("a chunk that is cut")
        body += data[at : at + size]
        at += size + 2
        if size == 0:
            return body, at
