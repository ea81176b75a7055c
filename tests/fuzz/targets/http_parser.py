"""Raw bytes into the gateway's HTTP protocol, as a client sends them in any pieces."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import ClassVar

import orjson

from fuzz.http_answers import Answer, read_answers
from fuzz.in_gateway import MODEL, InGateway
from fuzz.raw_bytes import joined, mutated, number, parted
from fuzz.target import BrokenError, Target

_REFUSALS = frozenset({400, 401, 403, 404, 405, 408, 411, 413, 414, 415, 421, 422, 426, 429, 431, 501, 505})
"""What a request may be answered that is not served; everything is there, so that nothing else fits."""
_METHODS = (
    b"GET",
    b"POST",
    b"POST",
    b"POST",
    b"HEAD",
    b"OPTIONS",
    b"PUT",
    b"DELETE",
    b"CONNECT",
    b"PRI",
    b"get",
    b"X" * 300,
)
_PATHS = (
    b"/health", b"/ready", b"/metrics", b"/v1/models", b"/v1/models/tiny", b"/v1/models/%00%ff", b"/v1/completions",
    b"/v1/completions", b"/v1/chat/completions", b"/v1/chat/completions", b"/openapi.json", b"*", b"//", b"/../..",
    b"/%", b"/\xff", b"http://a/health", b"http://[::1/health", b"/health?\xe9=%zz", b"/" + b"a" * 9000, b"",
    b"/v1/completions#x",
)  # fmt: skip
_HEADERS = (
    b"Host: 127.0.0.1", b"Host: evil.example", b"Host:", b"Content-Type: application/json", b"Content-Type: text/plain",
    b"Content-Type: application/json; charset=utf-16", b"Authorization: Bearer x", b"Authorization: \xff\xfe",
    b"Connection: close", b"Connection: keep-alive", b"Connection: upgrade", b"Upgrade: websocket", b"Upgrade: h2c",
    b"Expect: 100-continue", b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: x",
    b"Content-Length: 0", b"Content-Length: -1", b"Content-Length: 1e3", b"Content-Length: 99999999999999999999",
    b"Content-Length: 5\r\nContent-Length: 6", b"Accept-Encoding: \0", b"X: " + b"y" * 9000, b" folded",
    b": empty", b"no colon",
    b"Origin: null", b"Range: bytes=0-", b"Cookie: a=b", b"X\xe9: \xe9", b"Sec-WebSocket-Key: x",
    b"Forwarded: for=\"_x\"",
)  # fmt: skip
_VERSIONS = (b"HTTP/1.1",) * 6 + (b"HTTP/1.0", b"HTTP/2.0", b"HTTP/0.9", b"HTTP/1.2", b"http/1.1", b"")


class HttpParser(Target):
    """What is answered is well-formed, and a client that has sent all gets an end; nothing is logged or left."""

    name: ClassVar[str] = "http_parser"
    share: ClassVar[int] = 60

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._inside = InGateway(folder)

    def make(self, random: Random) -> bytes:
        """Whether the client goes away; requests, one behind the other, mutated and cut into pieces."""
        leaves = bytes([random.random() < 0.1])
        data = b"".join(_request(random) for _ in range(random.choice((1, 1, 1, 2, 3, 6))))
        if random.random() < 0.4:
            data = mutated(random, data)
        if random.random() < 0.6:
            return joined([leaves, data])
        cuts = sorted(random.randint(0, len(data)) for _ in range(random.choice((1, 2, 8, 40))))
        return joined([leaves, *(data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True))])

    def check(self, data: bytes) -> None:
        leaves, *parts = parted(data) or [b""]
        answered = self._inside.run(self._inside.converse(parts, end=True, reset=leaves == b"\x01"))
        for answer in read_answers(answered, _methods_of(b"".join(parts))):
            check_answer(answer)
        self._inside.check_unheard()

    def settle(self) -> None:
        health = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        prompt = {"model": MODEL, "prompt": "ab", "max_tokens": 2}
        request = json_request(b"/v1/completions", orjson.dumps(prompt))
        whole = read_answers(self._inside.run(self._inside.converse([health, request])), ["GET", "POST"])
        if [answer.status for answer in whole] != [200, 200] or b'"ab"' not in whole[1].body:
            raise BrokenError(f"the gateway does not go on: {whole}")
        self._inside.check_tasks()

    def close(self) -> None:
        self._inside.close()


def json_request(path: bytes, body: bytes) -> bytes:
    """A POST as it should be, the last one of its connection."""
    head = b"POST %b HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\n"
    head += b"Content-Length: %d\r\n\r\n"
    return head % (path, len(body)) + body


def _methods_of(data: bytes) -> list[str]:
    """Methods of the requests, as far as they can be told: HEAD alone matters, whose answers have no body."""
    return ["HEAD" if b"HEAD " in data else "GET"] * 100


def check_answer(answer: Answer) -> None:
    """BrokenError for a status or a body that nothing sent here should get."""
    if answer.status != 200 and answer.status not in _REFUSALS:
        raise BrokenError(f"answered {answer.status}: {answer.body[:500]!r}")
    if answer.headers.get(b"content-type") == b"application/json" and answer.body:
        json.loads(answer.body)


def _request(random: Random) -> bytes:
    """A request that is to be served, or one of which some part is odd."""
    body = _body(random)
    if random.random() < 0.25:
        return json_request(random.choice((b"/v1/completions", b"/v1/chat/completions")), body)
    lines = [b" ".join((random.choice(_METHODS), random.choice(_PATHS), random.choice(_VERSIONS)))]
    lines += [random.choice(_HEADERS) for _ in range(random.choice((0, 1, 2, 4, 10)))]
    kind = random.random()
    if kind < 0.5:
        lines.append(b"Content-Length: %d" % len(body))
    elif kind < 0.8:
        lines.append(b"Transfer-Encoding: chunked")
        body = _chunked(random, body)
    elif kind < 0.83:
        lines += [b"X-%d: y" % index for index in range(random.choice((90, 150, 1500)))]
    end = b"\n" if random.random() < 0.05 else b"\r\n"
    return end.join(lines) + end + end + body


def _body(random: Random) -> bytes:
    kind = random.random()
    limits = {"model": MODEL, "max_tokens": random.choice((1, 2, 30)), "stream": random.random() < 0.5}
    if kind < 0.4:
        return orjson.dumps({"prompt": "a lighthouse", **limits})
    if kind < 0.8:
        return orjson.dumps({"messages": [{"role": "user", "content": "why?"}], **limits})
    return random.choice((b"", b"{}", b"[" * 200, b"\0", b"null", b'{"prompt": "' + b"x" * 70000 + b'"}', b"\xff\xfe"))


def _chunked(random: Random, body: bytes) -> bytes:
    """In chunks, of which one may lie about its size."""
    chunks = b""
    while body:
        size = random.choice((1, 7, 64, len(body)))
        told = len(body[:size]) if random.random() < 0.95 else number(random)
        extension = random.choice((b"", b"", b"", b";a=b", b";" + b"c" * 5000))
        chunks += b"%x%b\r\n%b\r\n" % (told, extension, body[:size])
        body = body[size:]
    return chunks + random.choice(
        (b"0\r\n\r\n", b"0\r\n\r\n", b"0\r\nTrailer: x\r\n\r\n", b"00\r\n", b"", b"-1\r\n\r\n")
    )
