from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as HfTokenizer
from tokenizers import decoders, models

from gateway.tokens.detokenizer import REPLACEMENT, Detokenizer, WindowDetokenizer
from gateway.tokens.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return Tokenizer(tokenizer_folder)


@pytest.fixture(scope="module")
def pieces() -> HfTokenizer:
    """As SentencePiece tokenizers with byte fallback are written: pieces with U+2581 for spaces, and bytes."""
    words = ["\u2581Hello", "\u2581world", "\u2581", "!", "ö", "ab"]
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {w: 256 + i for i, w in enumerate(words)}
    tokenizer = HfTokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def run(detokenizer: Detokenizer, token_ids: list[int]) -> list[str]:
    return [*map(detokenizer.step, token_ids), detokenizer.flush()]


@given(token_ids=st.lists(st.integers(0, 511), max_size=60))
def test_any_tokens_give_the_text_of_all_at_once(tokenizer: Tokenizer, token_ids: list[int]) -> None:
    assert "".join(run(tokenizer.detokenizer(), token_ids)) == tokenizer.decode(token_ids)


@given(text=st.text(max_size=40).filter(lambda text: "<|" not in text))
def test_text_comes_back_in_whole_characters(tokenizer: Tokenizer, text: str) -> None:
    parts = run(tokenizer.detokenizer(), tokenizer.encode(text, add_special_tokens=False))
    assert "".join(parts) == text
    assert all(REPLACEMENT not in part for part in parts) or REPLACEMENT in text


def test_special_tokens_are_not_shown_and_unknown_ids_are_empty(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<|user|>hi<|end|>", add_special_tokens=False)
    assert "".join(run(tokenizer.detokenizer(), [*ids, 100_000])) == "hi"


def test_an_unfinished_character_is_flushed_as_a_replacement(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("東", add_special_tokens=False)
    assert run(tokenizer.detokenizer(), ids[:-1])[-1] == REPLACEMENT


def test_pieces_keep_spaces_between_words(pieces: HfTokenizer) -> None:
    detokenizer = WindowDetokenizer(pieces, frozenset())
    assert run(detokenizer, [256, 257, 259]) == ["Hello", " world", "!", ""]


def test_bytes_of_a_character_come_out_together(pieces: HfTokenizer) -> None:
    detokenizer = WindowDetokenizer(pieces, frozenset())
    assert run(detokenizer, [256, *"東".encode(), 257]) == ["Hello", "", "", "東", " world", ""]


def test_a_replacement_character_of_the_text_itself_is_whole(pieces: HfTokenizer) -> None:
    detokenizer = WindowDetokenizer(pieces, frozenset())
    token_ids = [*REPLACEMENT.encode(), *"\U0001f600".encode(), *REPLACEMENT.encode()]
    shown = ["", "", REPLACEMENT, "", "", "", "\U0001f600", "", "", REPLACEMENT, ""]
    assert run(detokenizer, token_ids) == shown


def test_ill_formed_bytes_do_not_hold_text_back_for_ever(pieces: HfTokenizer) -> None:
    detokenizer = WindowDetokenizer(pieces, frozenset({3}))
    parts = run(detokenizer, [256, *[0xFF] * 12, 3, 257])
    assert "".join(parts) == "Hello" + REPLACEMENT * 12 + " world"
    assert sum(map(bool, parts[:-2])) > 2


@given(text=st.text(alphabet="Hello world!öab東 ", max_size=30))
def test_pieces_give_the_text_of_all_at_once(pieces: HfTokenizer, text: str) -> None:
    ids = pieces.encode(text).ids
    assert "".join(run(WindowDetokenizer(pieces, frozenset()), ids)) == pieces.decode(ids)


def test_a_folder_of_pieces_is_recognised(pieces: HfTokenizer, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(json.loads(pieces.to_str())), "utf-8")
    tokenizer = Tokenizer(tmp_path)
    assert isinstance(tokenizer.detokenizer(), WindowDetokenizer)
    assert tokenizer.token_bytes(256) == b" Hello"
    assert tokenizer.token_bytes(0xE6) == b"\xe6"
    assert tokenizer.fewest_tokens("x" * 1000) == 0
