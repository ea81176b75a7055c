from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.openai.schema import ChatCompletionRequest, CompletionRequest
from gateway.text.body import read_body
from gateway.text.json_values import MalformedBodyError, bounded, check_texts
from slipstream.rpc.errors import InvalidArgumentError

LONG = 3000
IDS = st.integers(0, 2**32 - 1)


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "tiny", **fields}).encode()


@given(
    lists=st.lists(st.tuples(st.integers(1, LONG), IDS, st.sampled_from(["", " ", "\n\t "])), min_size=1, max_size=4),
    text=st.text(max_size=20),
)
def test_long_lists_of_token_ids_come_out_as_they_went_in(lists: list[tuple[int, int, str]], text: str) -> None:
    prompts = [[(first + index) % 2**32 for index in range(count)] for count, first, _ in lists]
    written = [
        f"[{space}{f'{space},'.join(map(str, prompt))}]" for prompt, (_, _, space) in zip(prompts, lists, strict=True)
    ]
    raw = b'{"metadata": %s, "prompt": [%s], "model": "tiny"}' % (
        json.dumps([text, '[1,2]"\\']).encode(),
        ",".join(written).encode(),
    )
    read, values = read_body(raw, CompletionRequest)
    assert [list(values.ids(prompt)) for prompt in read.prompts if not isinstance(prompt, str)] == prompts


@given(st.text(max_size=30), st.integers(0, 40))
def test_what_stands_in_strings_does_not_count(text: str, quotes: int) -> None:
    hostile = text + "\\" * quotes + '"[{,' * 5000
    read, _ = read_body(body(prompt=hostile, metadata=["x"] * 2000), CompletionRequest)
    assert read.prompts == [hostile]


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        (b'{"model": "x", "prompt": [' + b"-1," * 10**6, "prompt"),
        (b'{"model": "x", "prompt": [' + b"99999999999," * 10**5, "prompt"),
        (b'{"model": "x", "prompt": [' + b"9999999999," * 10**5 + b"1]}", "prompt"),
        (b'{"model": "x", "prompt": "[1,2]", "messages": [' + b"{}," * 10**6, "messages"),
        (b'{"model": "x", "messages": [{"content": [' + b"{}," * 10**6, "messages"),
        (b'{"stop": [' + b'"a",' * 10**6, "stop"),
        (b"[" + b"{}," * 10**6, ""),
        (b'{"\xff\xff": [' + b"{}," * 10**6, "\ufffd\ufffd"),
    ],
)
def test_too_many_values_name_their_field(raw: bytes, field: str) -> None:
    with pytest.raises(InvalidArgumentError, match="too many values") as caught:
        bounded(raw)
    assert caught.value.field == field


@pytest.mark.parametrize("wrong", ["007", "1 2", "", " ", "4294967296", " " * 70_000, "9" * 5000])
@pytest.mark.parametrize("place", [0, 1500, 2999])
def test_a_list_with_one_wrong_number_is_decoded_with_the_rest(wrong: str, place: int) -> None:
    numbers = ["5"] * LONG
    numbers[place] = wrong
    raw = b'{"model": "tiny", "prompt": [%s]}' % ",".join(numbers).encode()
    assert bounded(raw).json == raw


def test_values_in_one_another_are_no_json() -> None:
    with pytest.raises(MalformedBodyError, match="more than 201 lists and objects within"):
        bounded(b"[" * 10**6)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"logit_bias": {f"x{index}": 1 for index in range(3000)}}, "logit_bias"),
        ({"metadata": [{str(index): 1 for index in range(3000)}]}, "metadata"),
        ({f"x{index}": 1 for index in range(3000)}, ""),
    ],
)
def test_objects_have_a_bounded_number_of_keys(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgumentError, match="at most 1024 entries") as caught:
        read_body(body(prompt="x", **fields), CompletionRequest)
    assert caught.value.field == field


def test_a_bad_key_written_often_is_one_error() -> None:
    raw = b'{"model": "tiny", "prompt": "x", "logit_bias": {' + b",".join([b'"x": 1'] * 30_000) + b"}}"
    with pytest.raises(InvalidArgumentError, match="pattern") as caught:
        read_body(raw, CompletionRequest)
    assert caught.value.field == "logit_bias.x"


def test_figures_survive_where_keys_are_counted() -> None:
    bias = {str(token): token / 7 - 50 for token in range(1000)}
    read, _ = read_body(body(prompt="x", logit_bias=bias, metadata={"a": 1}, temperature=0.1), CompletionRequest)
    assert read.logit_bias == bias
    many = {str(index): 1 for index in range(30)}
    with pytest.raises(InvalidArgumentError, match="finite"):
        read_body(body(prompt="x", logit_bias=bias, metadata=many, top_p=float("nan")), CompletionRequest)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"stop_token_ids": [1] * LONG}, "stop_token_ids"),
        ({"messages": [1] * LONG}, "messages[0]"),
        ({"messages": [{"role": "user", "content": [1] * LONG}]}, "messages[0].content[0]"),
        ({"seed": [1] * LONG}, "seed"),
    ],
)
def test_long_lists_of_numbers_elsewhere_are_refused(fields: dict[str, Any], field: str) -> None:
    fields = {"messages": [{"role": "user", "content": "x"}], **fields}
    with pytest.raises(InvalidArgumentError) as caught:
        read_body(body(**fields), ChatCompletionRequest)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "texts",
    [
        ["[" + "{}," * 2**17 + "{}]"],
        ['"', *["[" + "{}," * 99 + "{}]"] * 60],
        ["[" + "1," * 2**17 + "1]"],
    ],
)
def test_json_in_strings_is_counted_all_together(texts: list[str]) -> None:
    with pytest.raises(InvalidArgumentError, match="arguments of calls make too many values") as caught:
        check_texts(texts, "messages")
    assert caught.value.field == "messages"


def test_what_calls_write_does_not_count() -> None:
    check_texts([json.dumps({"text": "a[0] = {b, c}; " * 10_000})] * 3 + ['{"a": [1, 2]}'] * 1000, "messages")
