"""The model's tokenizer, read from a Hugging Face folder without transformers."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gateway.tokens.bounded_pipeline import is_bounded
from gateway.tokens.detokenizer import ByteLevelDetokenizer, Detokenizer, WindowDetokenizer, decode
from gateway.tokens.tokenizer_file import read_tokenizer
from slipstream.panics import is_panic
from slipstream.rpc.errors import InvalidArgumentError


class Tokenizer:
    """Encodes text and writes token ids as text and bytes. Safe to share between requests and threads.

    `is_bounded`: encoding takes time in proportion to a text, whatever is in it.
    """

    __slots__ = ("_byte_level", "_bytes", "_lower_bound", "_shown", "_special", "_tokenizer",
                 "is_bounded", "longest_token")  # fmt: skip

    def __init__(self, folder: Path) -> None:
        """FailedPreconditionError for a tokenizer.json that `read_tokenizer` refuses."""
        self._tokenizer = read_tokenizer(folder)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        pipeline = json.loads(self._tokenizer.to_str())
        self._byte_level = _is_byte_level(pipeline["decoder"])
        self.is_bounded = is_bounded(pipeline)
        self._lower_bound = self._byte_level and pipeline["normalizer"] is None
        self._special = frozenset(
            token_id for token_id, token in self._tokenizer.get_added_tokens_decoder().items() if token.special
        )
        self._bytes = self._byte_table()
        self._shown: dict[tuple[str, ...], tuple[list[bytes], frozenset[int], dict[int, str]]] = {}
        self.longest_token = max(map(len, self._bytes), default=1)

    @property
    def vocab_size(self) -> int:
        """One more than the highest token id."""
        return len(self._bytes)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`. A special token's name in the text counts as that token.

        InvalidArgumentError if the tokenizer fails on the text, be it by a panic.
        """
        try:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        except BaseException as error:
            if isinstance(error, Exception) or is_panic(error):
                raise InvalidArgumentError(f"the tokenizer fails on the text: {str(error)[:200]}") from error
            raise
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `token_ids`. InternalError if the tokenizer fails on them."""
        return decode(self._tokenizer, token_ids, skip_special_tokens=skip_special_tokens)

    def names(self, token_ids: Sequence[int]) -> list[str]:
        """The tokens as the vocabulary writes them; empty beyond it."""
        return [self._tokenizer.id_to_token(token_id) or "" for token_id in token_ids]

    def detokenizer(self, shown: tuple[str, ...] = ()) -> Detokenizer:
        """A fresh incremental detokenizer for one output. It leaves special tokens out, but those named in `shown`."""
        if shown not in self._shown:  # one entry for each form that answers of the model are read in
            self._shown[shown] = (*self._visible(shown), {})
        table, hidden, whole = self._shown[shown]
        return ByteLevelDetokenizer(table, whole) if self._byte_level else WindowDetokenizer(self._tokenizer, hidden)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for, a special token's name included; empty beyond the vocabulary."""
        return self._bytes[token_id] if token_id < len(self._bytes) else b""

    def token_text(self, token_id: int) -> str:
        """A token alone as text; U+FFFD where it is no whole characters."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def fewest_tokens(self, text: str) -> int:
        """A lower bound on the number of tokens of `text`, found without tokenising it."""
        return len(text) // self.longest_token if self._lower_bound else 0

    def most_characters(self, tokens: int) -> int | None:
        """An upper bound on the characters of a text of `tokens` tokens; None if there is none."""
        return tokens * self.longest_token if self._lower_bound else None

    def _visible(self, shown: tuple[str, ...]) -> tuple[list[bytes], frozenset[int]]:
        """What each token shows, and the special tokens that show nothing."""
        hidden = self._special - {self._tokenizer.token_to_id(name) for name in shown}
        table = [b"" if index in hidden else text for index, text in enumerate(self._bytes)] if self._byte_level else []
        return table, hidden

    def special_id(self, name: str) -> int | None:
        """The id of an added token, special or not; None where the tokenizer has none of that name."""
        token_id: int | None = self._tokenizer.token_to_id(name)
        return token_id

    def _byte_table(self) -> list[bytes]:
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        table = [b""] * (max(vocabulary.values(), default=-1) + 1)
        alphabet = _byte_alphabet()
        for token, token_id in vocabulary.items():
            table[token_id] = _bytes_of_word(token, alphabet) if self._byte_level else _bytes_of_piece(token)
        return table


def _is_byte_level(decoder: dict[str, Any] | None) -> bool:
    if decoder is None:
        return False
    if decoder["type"] == "Sequence":
        return len(decoder["decoders"]) == 1 and _is_byte_level(decoder["decoders"][0])
    return bool(decoder["type"] == "ByteLevel")


def _byte_alphabet() -> dict[str, int]:
    """The 256 characters by which byte-level BPE writes bytes (Radford et al., GPT-2, 2019, section 2.2).

    Printable bytes stand for themselves, the others for U+0100 and on, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)).difference(printable))
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + index): byte for index, byte in enumerate(others)}


def _bytes_of_word(token: str, alphabet: dict[str, int]) -> bytes:
    """Bytes of a byte-level token; an added token that is not in the alphabet stands for itself."""
    if all(char in alphabet for char in token):
        return bytes(alphabet[char] for char in token)
    return token.encode("utf-8")


def _bytes_of_piece(token: str) -> bytes:
    """Bytes of a SentencePiece-style token: <0x0A> is a byte, U+2581 a space."""
    if byte := re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", token):
        return bytes([int(byte[1], 16)])
    return token.replace("\u2581", " ").encode("utf-8")
