"""What crosses between the gateway and a text worker, over a socket pair: frames of a head, a header and a payload.

Requests: the job, the model's facts (pickled once, sent with each request), the caller's bytes as they came.
Answers: whether it is an error, and the result or the error, pickled. Worker and gateway are the same program, and what
callers send is never unpickled.
"""

from __future__ import annotations

import pickle
import socket
import struct
from typing import Any, Final, NamedTuple

from gateway.text.prepared import Job

_REQUEST: Final = struct.Struct("<BII")
ANSWER: Final = struct.Struct("<BI")
"""Whether it is an error, and the number of bytes that follow."""


class Request(NamedTuple):
    """A job for a worker."""

    job: Job
    facts: bytes
    payload: bytearray


def request_head(job: Job, facts: bytes, payload: bytes | bytearray) -> bytes:
    """What goes before the payload of a request."""
    return _REQUEST.pack(job, len(facts), len(payload)) + facts


def read_request(connection: socket.socket) -> Request | None:
    """The next request; None once the gateway has gone."""
    head = _read(connection, _REQUEST.size)
    if head is None:
        return None
    job, header_size, payload_size = _REQUEST.unpack(head)
    facts = _read(connection, header_size)
    payload = _read(connection, payload_size)
    return None if facts is None or payload is None else Request(Job(job), bytes(facts), payload)


def write_answer(connection: socket.socket, answer: object, *, failed: bool = False) -> None:
    """Send an answer, or what a job raised."""
    body = pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)
    connection.sendall(ANSWER.pack(failed, len(body)) + body)


def read_answer(body: bytes | bytearray | memoryview) -> Any:
    """The answer, or the error, behind the head."""
    return pickle.loads(body)  # noqa: S301  # written by our own worker


def _read(connection: socket.socket, size: int) -> bytearray | None:
    """Exactly `size` bytes; None if the other end has gone."""
    data = bytearray(size)
    view, done = memoryview(data), 0
    while done < size:
        count = connection.recv_into(view[done:])
        if not count:
            return None
        done += count
    view.release()
    return data
