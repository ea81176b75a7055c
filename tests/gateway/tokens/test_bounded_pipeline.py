"""Tokenizers that take time in proportion to a text, whatever is in it, and others."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from gateway.text.in_process.small_requests import MOST_BYTES
from gateway.tokens.bounded_pipeline import EXPRESSIONS, is_bounded
from support.least_seconds import least_seconds

DEMO = Path("demo_models/slipstream-demo/tokenizer.json")
SECONDS = 0.05
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
UNITS = [
    "a", "A", " ", "\n", " \n", "\t ", "1", "'", "'ll", "aA1 '", "\N{GRINNING FACE}", "中", "e\u0301", "!", " !", "#\r",
    "\u200d", "the ", "<|begin|>", "\ufdfa", "\x00",
]  # fmt: skip


@pytest.fixture(scope="module")
def pipeline() -> dict[str, Any]:
    """As `tokenizers` writes the demo model's."""
    written: dict[str, Any] = json.loads(Tokenizer.from_file(str(DEMO)).to_str())
    return written


def split(expression: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}


def test_byte_level_tokenizers_of_known_words_are_bounded(pipeline: dict[str, Any], tokenizer_folder: Path) -> None:
    assert is_bounded(pipeline)
    assert is_bounded(json.loads(Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json")).to_str()))
    assert is_bounded(pipeline | {"normalizer": {"type": "NFC"}})


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "NFKC"}},
        {"normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}},
        {"pre_tokenizer": None},
        {"pre_tokenizer": BYTE_LEVEL},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split("(a+)+b"), BYTE_LEVEL]}},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split(next(iter(EXPRESSIONS)))]}},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": []}},
        {"pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always", "split": True}},
        {"model": {"type": "Unigram", "unk_id": 0, "vocab": [["a", 0.0]]}},
        {"model": {"type": "WordPiece"}},
        {"added_tokens": [{"id": 0, "content": "x", "lstrip": True}]},
        {"added_tokens": [{"id": 0, "content": "x", "single_word": True}]},
        {
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 4,
                "special_tokens": {},
            }
        },
    ],
    ids=range(13),
)
def test_others_are_not(pipeline: dict[str, Any], change: dict[str, Any]) -> None:
    assert not is_bounded(pipeline | change)


@pytest.mark.parametrize("setting", ["dropout", "byte_fallback", "unk_token", "end_of_word_suffix"])
def test_others_of_byte_pairs_are_not(pipeline: dict[str, Any], setting: str) -> None:
    assert not is_bounded(pipeline | {"model": pipeline["model"] | {setting: 0.5}})


@pytest.mark.parametrize("normalizer", [None, {"type": "NFC"}])
@pytest.mark.parametrize("expression", sorted(EXPRESSIONS), ids=range(len(EXPRESSIONS)))
def test_the_longest_texts_are_read_in_time(
    pipeline: dict[str, Any], expression: str, normalizer: dict[str, Any] | None
) -> None:
    changed = copy.copy(pipeline) | {"normalizer": normalizer}
    changed["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split(expression), BYTE_LEVEL]}
    assert is_bounded(changed)
    tokenizer = Tokenizer.from_str(json.dumps(changed))
    for unit in UNITS:
        text = unit * (2 * MOST_BYTES // len(unit))  # as long as a template may make it
        assert least_seconds(lambda text=text: tokenizer.encode(text), SECONDS) < SECONDS, unit
