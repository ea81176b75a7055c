"""What events say, of servers that give token ids and of others."""

import json

import pytest

from benchmarks.serving.answer import DONE, Exchange, read_answer


def answer(*events, failure=""):
    stamped = [(1.0 + index, event if isinstance(event, bytes) else json.dumps(event).encode()) for index, event in
               enumerate(events)]  # fmt: skip
    return read_answer(Exchange(3, 0.5, 0.75, stamped, 9.0, failure))


def piece(text="", ids=None, finish=None, **more):
    fields = {"index": 0, "text": text, "finish_reason": finish, **more}
    return {"choices": [fields if ids is None else {**fields, "token_ids": ids}]}


END = {"choices": [], "usage": {"completion_tokens": 6}}


def test_ids_say_how_many_tokens_a_message_has():
    told = {"verify_steps": 2, "drafted_tokens": 9, "accepted_tokens": 4}
    opening = {"choices": [{"index": 0, "text": "", "token_ids": [], "prompt_token_ids": [1, 2]}]}
    found = answer(
        opening, piece("a", [5]), piece("bc", [6, 7]), piece("d", [8], "length", speculation=told), END, DONE
    )
    assert found.whole
    assert (found.token_ids, found.text, found.tokens) == ((5, 6, 7, 8), "abcd", 4)
    assert (found.times, found.counts) == ((2.0, 3.0, 4.0), (1, 2, 1))
    assert found.ttft == pytest.approx(1.5)
    assert found.tpot == pytest.approx(2.0 / 3)
    assert (found.verify_steps, found.drafted, found.accepted) == (2, 9, 4)


def test_without_ids_the_usage_is_shared_out():
    found = answer(piece("a"), piece("b"), piece("", finish="length"), END, DONE)
    assert (found.token_ids, found.tokens, found.counts) == (None, 6, (3.0, 3.0))
    assert answer(piece("a"), piece("b", finish="stop"), DONE).tokens == 2


@pytest.mark.parametrize(
    ("events", "failure"),
    [
        ((piece("a"), {"error": {"message": "out of luck"}}), "out of luck"),
        ((piece("a"), DONE), "without a finish reason"),
        ((piece("a"), b"{"), "no event"),
        ((piece("a"), b"[1]"), "no event"),
        ((), "without a finish reason"),
    ],
)
def test_what_is_not_whole_says_why(events, failure):
    found = answer(*events)
    assert not found.whole
    assert failure in found.failure


def test_a_failure_of_the_connection_goes_before_what_had_come():
    found = answer(piece("a", [1], "length"), failure="connection: reset")
    assert (found.failure, found.whole, found.tokens) == ("connection: reset", False, 1)
