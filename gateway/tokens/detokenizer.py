"""Incremental detokenisation: token by token, whole characters only."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Final, Protocol

from tokenizers import Tokenizer as HfTokenizer

from slipstream.panics import is_panic
from slipstream.rpc.errors import InternalError

REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"


class Detokenizer(Protocol):
    """Text of one output. The concatenation of all `step` results and of `flush` is the text."""

    def step(self, token_id: int) -> str:
        """Characters completed by this token; empty while a character is incomplete."""
        ...

    def flush(self) -> str:
        """What is still incomplete at the end, as replacement characters."""
        ...


class ByteLevelDetokenizer:
    """For byte-level BPE, where a token is a fixed string of bytes.

    `table[id]` are a token's bytes, empty if special. `whole` has texts of tokens that are whole characters, as far as
    they have been met; outputs share it. The text equals the decoding of all ids at once: UTF-8 with each maximal
    ill-formed part replaced by U+FFFD (The Unicode Standard, section 3.9).
    """

    __slots__ = ("_begun", "_decoder", "_table", "_whole")

    def __init__(self, table: Sequence[bytes], whole: dict[int, str]) -> None:
        self._table = table
        self._whole = whole
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = False  # whether bytes of a character are in the decoder

    def step(self, token_id: int) -> str:
        """See Detokenizer."""
        if not self._begun and (text := self._whole.get(token_id)) is not None:
            return text
        if token_id >= len(self._table):
            return ""
        begun, token = self._begun, self._table[token_id]
        text = self._decoder.decode(token)
        self._begun = bool(self._decoder.getstate()[0])
        if not begun and not self._begun:
            self._whole[token_id] = text
        return text

    def flush(self) -> str:
        """See Detokenizer."""
        self._begun = False
        return self._decoder.decode(b"", True)


def decode(tokenizer: HfTokenizer, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
    """Text of `token_ids`. InternalError if the tokenizer fails on them, be it by a panic."""
    try:
        text: str = tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)
    except BaseException as error:
        if isinstance(error, Exception) or is_panic(error):
            raise InternalError(f"the tokenizer fails on the tokens: {str(error)[:200]}") from error
        raise
    return text


class WindowDetokenizer:
    """For any other tokenizer: decodes a short window of tokens before and after each new one.

    The tokens since the last complete text, and those of the text before it, are decoded together, so that spaces
    and merges between them come out as in the whole. A character has at most four bytes, hence four tokens:
    what is still incomplete after more is ill-formed and is let through.
    """

    __slots__ = ("_ids", "_shown", "_special", "_start", "_tokenizer")

    _LONGEST_CHARACTER: Final = 4
    _REPLACEMENT_BYTES: Final = ["<0xEF>", "<0xBF>", "<0xBD>"]

    def __init__(self, tokenizer: HfTokenizer, special_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._special = special_ids
        self._ids: list[int] = []
        self._start = 0  # first token whose text is not out yet, an index into _ids
        self._shown = ""  # text of _ids[:_start]

    def step(self, token_id: int) -> str:
        """See Detokenizer."""
        if token_id in self._special:
            return ""
        self._ids.append(token_id)
        text = self._decode(self._ids)
        incomplete = (text.endswith(REPLACEMENT) and not self._ends_whole()) or len(text) <= len(self._shown)
        if incomplete and len(self._ids) - self._start <= self._LONGEST_CHARACTER:
            return ""
        return self._release(text)

    def flush(self) -> str:
        """See Detokenizer."""
        return self._release(self._decode(self._ids)) if self._start < len(self._ids) else ""

    def _ends_whole(self) -> bool:
        """Whether the last tokens are the bytes of a replacement character that the text itself has."""
        return [self._tokenizer.id_to_token(token_id) for token_id in self._ids[-3:]] == self._REPLACEMENT_BYTES

    def _release(self, text: str) -> str:
        new = text[len(self._shown) :]
        self._ids = self._ids[self._start :]
        self._start = len(self._ids)
        self._shown = self._decode(self._ids)
        return new

    def _decode(self, ids: list[int]) -> str:
        return decode(self._tokenizer, ids, skip_special_tokens=False)
