"""A response is read alike in whatever pieces it comes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.serving.sse import HttpError, ResponseReader

EVENTS = [b'{"choices": [{"text": "one"}]}', json.dumps({"text": "zwölf 東"}).encode(), b"[DONE]"]
BODY = b"".join(b"data: " + event + b"\n\n" for event in EVENTS)


def chunked(body, sizes):
    """The body in chunks of these sizes, the rest in one, then a trailer."""
    parts, at = [], 0
    for size in [*sizes, len(body)]:
        part = body[at : at + size]
        at += size
        if part:
            parts.append(b"%x;of=tests\r\n%b\r\n" % (len(part), part))
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n" + b"".join(parts) + b"0\r\nx-end: 1\r\n\r\n"


def sized(body, status=b"200 OK"):
    return b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


def read(data, cuts):
    reader, events, at = ResponseReader(), [], 0
    for cut in [*sorted(cuts), len(data)]:
        events += reader.feed(data[at:cut]) if cut > at else []
        at = max(at, cut)
    return reader, events


cuts = st.lists(st.integers(1, len(BODY) + 90), max_size=12)


@given(st.lists(st.integers(1, 40), max_size=12), cuts)
def test_chunks_and_pieces_change_nothing(sizes, at):
    reader, events = read(chunked(BODY, sizes), at)
    assert events == EVENTS
    assert reader.done
    assert reader.reusable


@given(cuts)
def test_a_body_of_stated_length_and_one_up_to_the_close(at):
    reader, events = read(sized(BODY), at)
    assert (events, reader.done, reader.reusable) == (EVENTS, True, True)
    reader, events = read(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + BODY, at)
    assert (events, reader.done) == (EVENTS, False)
    reader.end()
    assert (reader.done, reader.reusable) == (True, False)


@given(st.integers(0, len(chunked(BODY, [7, 9])) - 1))
def test_what_ends_too_early_is_no_response(length):
    reader, _ = read(chunked(BODY, [7, 9])[:length], [])
    with pytest.raises(HttpError):
        reader.end()


def test_another_status_is_told_with_its_body():
    reader, events = read(sized(b'{"error": "full"}', b"503 Service Unavailable"), [5, 60])
    assert (reader.status, bytes(reader.body), events, reader.done) == (503, b'{"error": "full"}', [], True)


def test_an_interim_response_is_passed_over():
    reader, events = read(b"HTTP/1.1 100 Continue\r\n\r\n" + sized(BODY), [9])
    assert (reader.status, events) == (200, EVENTS)


@pytest.mark.parametrize("data", [b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"])
def test_garbage_is_refused(data):
    with pytest.raises(HttpError):
        ResponseReader().feed(data)
