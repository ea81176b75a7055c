"""What crosses between the gateway and a text worker, over a socket pair: frames of a head, a header and a payload.

Requests: the job, the model's facts (pickled, where they are other than the last), the caller's bytes as they came.
Answers: which kind it is, and the result or the error, pickled. An answer that is to be checked yet comes first, where
there is one; behind it None says that the check found nothing. Worker and gateway are the same program, and what
callers send is never unpickled.
"""

from __future__ import annotations

import pickle
import socket
import struct
from enum import IntEnum
from typing import Any, Final, NamedTuple

from gateway.text.prepared import WorkerTask

_REQUEST: Final = struct.Struct("<BII")
ANSWER: Final = struct.Struct("<BI")
"""The kind, and the number of bytes that follow."""

_ONE_READ: Final = 64 * 1024
"""Bytes. Most requests are whole in their first read."""


class Kind(IntEnum):
    """What an answer is."""

    RESULT = 0
    ERROR = 1
    UNCHECKED = 2


class Request(NamedTuple):
    """A job for a worker. Empty `facts`: the last that were sent."""

    job: WorkerTask
    facts: bytes
    payload: bytearray


def request_head(job: WorkerTask, facts: bytes, payload: bytes | bytearray) -> bytes:
    """What goes before the payload of a request."""
    return _REQUEST.pack(job, len(facts), len(payload)) + facts


def read_request(connection: socket.socket) -> Request | None:
    """The next request; None once the gateway has gone. The gateway sends none before the last is answered."""
    data = bytearray(connection.recv(_ONE_READ))
    if not _fill(connection, data, _REQUEST.size):
        return None
    job, header_size, payload_size = _REQUEST.unpack_from(data)
    header_end = _REQUEST.size + header_size
    if not _fill(connection, data, header_end + payload_size):
        return None
    facts = bytes(data[_REQUEST.size : header_end])
    del data[:header_end]
    return Request(WorkerTask(job), facts, data)


def write_answer(connection: socket.socket, answer: object, kind: Kind = Kind.RESULT) -> None:
    """Send an answer, or what a job raised."""
    body = pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)
    connection.sendall(ANSWER.pack(kind, len(body)) + body)


def read_answer(body: bytes | bytearray | memoryview) -> Any:
    """The answer, or the error, behind the head."""
    return pickle.loads(body)  # noqa: S301  # written by our own worker


def _fill(connection: socket.socket, data: bytearray, size: int) -> bool:
    """Read on until there are `size` bytes; False if the other end has gone."""
    while len(data) < size:
        part = connection.recv(min(size - len(data), _ONE_READ))
        if not part:
            return False
        data += part
    return True
