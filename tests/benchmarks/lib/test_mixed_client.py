"""What a client makes of answers that a server should never give, which a server of this test gives all the same."""

import asyncio
import json
from contextlib import suppress
from random import Random

import pytest

from benchmarks.lib.mixed_client import Failure, MixedClient
from benchmarks.lib.request_mix import Manner, Question

STREAMED, WHOLE = Manner(None, streamed=True), Manner(None, streamed=False)
HEAD = "HTTP/1.1 {} \r\nconnection: close\r\n{}\r\n"


def question(api="completions", n=1):
    return Question(0, api, "Why?", {"max_tokens": 5}, n=n)


def event(text, ids, end=None, index=0, **more):
    choice = {"index": index, "text": text, "token_ids": ids, "logprobs": None, "finish_reason": end}
    return "data: " + json.dumps({"choices": [{**choice, "stop_reason": None, **more}]}) + "\n\n"


def error(kind):
    return "data: " + json.dumps({"error": {"type": kind, "message": "of the server"}}) + "\n\n"


def ask(manner, *pieces, status="200 OK", headers="", patience=5.0, asked=None):
    """Outcome of one question to a server that answers with `pieces`; None as a piece: nothing more, ever."""

    async def answer(reader, writer):
        request = await reader.readuntil(b"\r\n\r\n")
        if b"/v1/models" in request:
            writer.write(HEAD.format("200 OK", "").encode() + b'{"data": [{"id": "tiny"}]}')
            return
        await reader.read(1 << 16)  # the body
        writer.write(HEAD.format(status, headers).encode())
        for piece in pieces:
            await writer.drain()
            if piece is None:
                await reader.read()  # until the client leaves
                return
            writer.write(piece.encode())

    async def serve(reader, writer):
        with suppress(ConnectionError):
            await answer(reader, writer)
            await writer.drain()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        served.release()

    served = asyncio.Semaphore(0)

    async def run():
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with MixedClient(f"http://{address}", address, Random(1)) as client:
                outcome = await client.ask(asked or question(), manner, patience)
            for _ in range(2):  # connections: for the model's name, and for the question
                await served.acquire()
        return outcome

    return asyncio.run(run())


def test_a_stream_is_put_together():
    logprobs = {"tokens": ["a"], "token_logprobs": [-0.5], "top_logprobs": None}
    pieces = event("a", [1], logprobs=logprobs), event("b", [2, 3], logprobs=logprobs), event("", [], "length")
    outcome = ask(STREAMED, *pieces, "data: [DONE]\n\n")
    assert outcome.answered
    (choice,) = outcome.choices
    assert (choice.text, choice.token_ids, choice.end) == ("ab", [1, 2, 3], ("length", None))
    assert choice.logprobs == {"tokens": ["a", "a"], "token_logprobs": [-0.5, -0.5]}
    assert outcome.tokens == [1, 2]
    assert outcome.started <= outcome.arrivals[0] <= outcome.arrivals[1] <= outcome.ended


@pytest.mark.parametrize(
    ("pieces", "asked"),
    [
        ((event("a", [1], "length"),), question()),  # no [DONE]
        ((event("a", [1]), "data: [DONE]\n\n"), question()),  # no finish reason
        ((event("a", [1], "length"), "data: [DONE]\n\n"), question(n=2)),  # one choice of two
    ],
)
def test_a_stream_without_its_end_is_no_answer(pieces, asked):
    outcome = ask(STREAMED, *pieces, asked=asked)
    assert outcome.failure.code == "MALFORMED"
    assert not outcome.answered


def test_errors_in_a_stream_are_told_by_their_type():
    for kind, code in (("service_unavailable_error", "UNAVAILABLE"), ("internal_error", "INTERNAL")):
        outcome = ask(STREAMED, event("a", [1]), error(kind))
        assert outcome.failure == Failure(code, "of the server", None, in_stream=True)


def test_statuses_are_told_by_their_code_and_retry_after():
    unavailable = ask(WHOLE, "{}", status="503 x", headers="retry-after: 7\r\n")
    assert (unavailable.failure.code, unavailable.failure.retry_after) == ("UNAVAILABLE", 7.0)
    assert ask(STREAMED, "{}", status="429 x").failure.code == "RESOURCE_EXHAUSTED"
    assert ask(STREAMED, "{}", status="500 x").failure.code == "INTERNAL"
    assert ask(STREAMED, "{}", status="418 x").failure.code == "HTTP 418"


def test_silence_counts_from_the_last_event():
    silent = ask(STREAMED, event("a", [1]), None, patience=0.3)
    assert silent.failure.code == "SILENT"
    assert silent.failure.in_stream
    assert silent.tokens == [1]
    assert ask(WHOLE, None, patience=0.3).failure.code == "SILENT"


def test_a_connection_that_breaks_is_told_as_such():
    outcome = ask(STREAMED, event("a", [1]), headers="content-length: 100000\r\n")
    assert outcome.failure.code == "CONNECTION"


def test_one_that_leaves_has_no_answer_and_no_failure():
    outcome = ask(Manner(None, streamed=True, reading="leaves"), *[event("a", [1])] * 20)
    assert outcome.failure is None
    assert not outcome.answered
    assert 1 <= outcome.total <= 13
