from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from gateway.tokens.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return Tokenizer(tokenizer_folder)


@given(text=st.text(max_size=60))
def test_encodes_as_transformers_does(tokenizer: Tokenizer, reference: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.encode(text, add_special_tokens=True) == reference.encode(text)


@pytest.fixture(scope="module")
def reference(tokenizer_folder: Path) -> PreTrainedTokenizerFast:
    loaded = PreTrainedTokenizerFast.from_pretrained(tokenizer_folder)
    assert isinstance(loaded, PreTrainedTokenizerFast)
    return loaded


@given(text=st.text(max_size=60))
def test_bytes_of_tokens_are_the_bytes_of_the_text(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
    assert tokenizer.fewest_tokens(text) <= len(ids)


def test_special_tokens_and_ids_beyond_the_vocabulary(tokenizer: Tokenizer) -> None:
    (user,) = tokenizer.encode("<|user|>", add_special_tokens=False)
    assert tokenizer.token_bytes(user) == b"<|user|>"
    assert tokenizer.decode([user]) == ""
    assert tokenizer.token_bytes(tokenizer.vocab_size) == b""
