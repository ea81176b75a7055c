"""A body whose objects have a key twice is ambiguous, and refused by the name of the field."""

from __future__ import annotations

import pytest

from gateway.text.repeated_keys import check_repeated_keys
from slipstream.rpc.errors import InvalidArgumentError


@pytest.mark.parametrize(
    "body",
    [
        b'{"logit_bias": {"7": 1, "8": 1}}',
        b'{"logit_bias": null, "stop": ["a", "a"], "prompt": [[1, 1], [1]]}',
        b'{"metadata": {"logit_bias": {"7": 1, "8": 2, "9": 3}}, "logit_bias": {"7": 1}}',
        b'{"metadata": {"a": 1, "a": [{"b": 1, "b": 2}]}, "prompt": "\\"seed\\": {\\"7\\": 1, \\"7\\": 2}"}',
        b'{"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "a"}]}',
        b'{"metadata": [' + b"9" * 5000 + b', NaN, 1e999, -Infinity], "seed": 1}',
        b'{"metadata": ' + b"[" * 190 + b"]" * 190 + b"}",
    ],
)
def test_each_key_once(body: bytes) -> None:
    check_repeated_keys(body, {"metadata"})


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"seed": 1, "prompt": "a", "seed": 1}', "seed"),
        (b'{"metadata": 1, "metadata": 2}', "metadata"),
        (b'{"logit_bias": {"7": 1, "8": 2, "7": 1}}', "logit_bias.7"),
        (b'{"logit_bias": {"7": 1, "\\u0037": 1}}', "logit_bias.7"),
        (b'{"stream_options": {"include_usage": true, "include_usage": false}}', "stream_options.include_usage"),
        (b'{"messages": [{"role": "user", "content": "a"}, {"content": "a", "content": "b"}]}', "messages[1].content"),
        (b'{"tools": [[{"x": {"metadata": {"a": 1, "a": 2}}}]]}', "tools[0][0].x.metadata.a"),
    ],
)
def test_a_key_that_stands_twice_is_named(body: bytes, field: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        check_repeated_keys(body, {"metadata"})
    assert raised.value.field == field
    assert raised.value.message == f"{field} stands twice in its object"


def test_long_names_are_shortened() -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        check_repeated_keys(b'{"%s": 1, "%s": 2}' % (b"k" * 5000, b"k" * 5000))
    assert len(raised.value.message) < 300


@pytest.mark.parametrize("text", [b"a", b'\\"', b"\xf0\x9f\x98\x80", b"\\\\"])
def test_large_bodies_are_read_without_their_texts(text: bytes) -> None:
    long = text * 100_000
    key = text * 2000
    body = b'{"prompt": "%s", "metadata": {"%s" : ["%s", {}], "%sb": "%s"}' % (long, key, long, key, long)
    check_repeated_keys(body + b', "seed": 1}')
    for last, field in (
        (b', "prompt" : 1}', "prompt"),
        (b', "tools": [{"a": {"b": 1, "b": "%s"}}]}' % long, "tools[0].a.b"),
    ):
        with pytest.raises(InvalidArgumentError) as raised:
            check_repeated_keys(body + last)
        assert raised.value.field == field
