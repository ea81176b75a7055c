"""Tokens and weights of conversations with tools."""

import json
from pathlib import Path
from random import Random

import numpy as np
import pytest

from training.demo_models.tool_use.conversations import BARE, CALL, RESULT, Maker
from training.demo_models.tool_use.encode import ToolEncoder, Weighted, short_chats, structure

CHATS = [("Why is the sky blue?", "Because of the air.")]


@pytest.fixture(scope="module")
def encoder(demo_model: Path) -> ToolEncoder:
    return ToolEncoder(demo_model / "tokenizer.json", 1500)


def weighty(encoder: ToolEncoder, found: Weighted) -> str:
    return str(encoder.tokenizer.decode(found.tokens[found.weights > 0].tolist(), skip_special_tokens=False))


def test_answers_weigh_and_prompts_do_not(encoder: ToolEncoder) -> None:
    made = Maker.of_training(CHATS).make(Random(1), CALL)
    call = made.wanted[0]
    text = f'<tool_call>\n{{"name": "{call["name"]}", "arguments": {json.dumps(call["arguments"])}}}\n</tool_call>'
    assert weighty(encoder, encoder.encode([made])) == text + "<|end|>"
    told = Maker.of_training(CHATS).make(Random(2), RESULT)
    words = weighty(encoder, encoder.encode([told]))
    assert words.startswith("<tool_call>") and words.endswith(f"{told.messages[-1]['content']}<|end|>")
    assert "<tool_response>" not in words


def test_of_json_that_nobody_asked_for_only_what_stands_in_it_weighs(encoder: ToolEncoder) -> None:
    maker = Maker.of_training(CHATS)
    for seed in range(20):
        made = maker.make(Random(seed), BARE)
        words = weighty(encoder, encoder.encode([made]))
        assert not words.startswith("{") and words.endswith("}<|end|>")
        if all(isinstance(value, (int, float)) for value in made.wanted.values()):
            assert not any(key in words for key in made.wanted)


def test_structure_is_the_first_bracket_and_the_keys() -> None:
    text = 'x {"a": "b: \\"c", "d": [1, {"e": "f"}]}'
    free = "".join(letter for letter, is_free in zip(text, structure(text, 2), strict=True) if is_free)
    assert free == '{"a""d""e"'


def test_documents_that_are_too_long_are_left_out(demo_model: Path) -> None:
    maker, choose = Maker.of_training(CHATS), Random(4)
    made = [maker.make(choose) for _ in range(30)]
    every = ToolEncoder(demo_model / "tokenizer.json", 1500).encode(made)
    some = ToolEncoder(demo_model / "tokenizer.json", 200).encode(made)
    assert int(some.lengths.max()) <= 200 and len(some.lengths) == int((every.lengths <= 200).sum())
    assert len(some.tokens) == len(some.weights) == int(some.lengths.sum())
    both = Weighted.joined([some, every])
    assert np.array_equal(both.lengths, np.concatenate((some.lengths, every.lengths)))


def test_short_chats_are_of_one_turn() -> None:
    record = {"kind": "chat", "source": "s", "messages": [{"role": "user", "content": "q"}]}
    records = [
        record,
        record | {"messages": [*record["messages"], {"role": "assistant", "content": "a"}]},
        record | {"messages": [*record["messages"], {"role": "assistant", "content": "a" * 999}]},
        {"kind": "text", "source": "s", "text": "t"},
    ]
    assert [pair for pair in short_chats(records) if pair[0] == "q"] == [("q", "a")]
