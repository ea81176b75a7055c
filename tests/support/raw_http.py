"""HTTP/1.1 written and read as bytes, for what no client library would send."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterable, Mapping
from typing import Any

JSON = {"content-type": "application/json"}


def connect(url: str, *, timeout: float = 60.0, source: str = "") -> socket.socket:
    """A connection to the server at `url`, from the loopback address `source` if given."""
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout, (source, 0) if source else None)


def request(method: str, path: str, body: Any = None, headers: Mapping[str, str] = JSON, lines: str = "") -> bytes:
    """A request of one piece; `lines` are further header lines, each with its end."""
    content = b"" if body is None else json.dumps(body).encode()
    head = {"host": "localhost", "content-length": str(len(content)), **headers}
    written = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    return f"{method} {path} HTTP/1.1\r\n{written}{lines}\r\n".encode() + content


def exchange(url: str, parts: Iterable[bytes], *, end: bool = False, timeout: float = 60.0) -> bytes:
    """All that the server answers until it closes; `end` shuts down the sending side after the last part.

    A server that refuses may stop reading, and what it has written by then is the answer.
    """
    answer = b""
    with connect(url, timeout=timeout) as connection:
        try:
            for part in parts:
                connection.sendall(part)
            if end:
                connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        try:
            while received := connection.recv(65536):
                answer += received
        except ConnectionError:
            pass
    return answer


def statuses(answer: bytes) -> list[int]:
    """The status codes of all final responses in `answer`."""
    found = [int(code) for code in re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)]
    return [status for status in found if status >= 200]
