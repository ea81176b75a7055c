"""Texts that must come next, in the splits into tokens that a model may choose."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from slipstream.grammar.tokenizer import GrammarTokenizer
from slipstream.panics import is_panic
from slipstream_kernels.token_tree import TokenTree

GRAMMAR = "grammar"
"""Name of the proposer that drafts forced text, under which its nodes are counted."""
_LONGEST = 32
"""Bytes of the longest token that is looked for."""
_SIBLINGS = 2
"""Other tokens that are drafted beside each one of the usual split."""
_FEW = 4
"""Nodes that must be left beside the usual split for others to be drafted."""
_KEPT = 1024
"""Trees; a schema forces the same texts again and again."""


class ForcedTexts:
    """Made once a process, in some 0.1 s for a vocabulary of 128,000. Thread-safe."""

    def __init__(self, tokenizer: GrammarTokenizer) -> None:
        tokens, special = tokenizer.tokens, set(tokenizer.specials.values()) | set(tokenizer.eos_token_ids)
        self._tokens = tokens
        self._ids: dict[bytes, int] = {}
        self._lengths: dict[int, int] = {}
        for token in range(min(tokens.vocab_size, tokenizer.vocab_size)):
            if token not in special and (text := tokens.decode_bytes([token])):
                self._ids.setdefault(text, token)
                self._lengths[token] = len(text)
        self._tree = lru_cache(_KEPT)(self._grown)

    def only_text(self, words: NDArray[np.uint32]) -> tuple[int, bytes]:
        """Return the longest of the tokens that a mask allows, and its text, where that begins with each other one's.

        A text of no byte where tokens go apart, or one of them is special. Bit i of word i // 32 is token i.
        """
        tokens = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
        if not 1 <= len(tokens) <= _LONGEST or not all(int(token) in self._lengths for token in tokens):
            return -1, b""
        texts = {self._tokens.decode_bytes([int(token)]): int(token) for token in tokens}
        longest = max(texts, key=len)
        return (texts[longest], longest) if all(map(longest.startswith, texts)) else (-1, b"")

    def tree(self, text: bytes, max_nodes: int, max_depth: int) -> TokenTree | None:
        """Return a text as a chain of tokens, in the tokenizer's own split, with siblings.

        A model need not split a text as its tokenizer does: siblings are the longest other tokens that the text goes on
        with. A chain ends where the split depends on what follows the text. None where nothing fits.
        """
        return self._tree(text[: _LONGEST * max_depth], max_nodes, max_depth)

    def _grown(self, text: bytes, max_nodes: int, max_depth: int) -> TokenTree | None:
        tokens = self._split(text)[: min(max_depth, max_nodes)]
        siblings = self._siblings(tokens, text, max_depth) if len(tokens) + _FEW <= max_nodes else []
        ids = [*tokens, *(token for token, _ in siblings)][:max_nodes]
        parents = [*range(-1, len(tokens) - 1), *(parent for _, parent in siblings)][:max_nodes]
        return TokenTree(tuple(ids), tuple(parents), sources=(GRAMMAR,) * len(ids)) if ids else None

    def _split(self, text: bytes) -> list[int]:
        try:
            tokens, _ = self._tokens.tokenize_partial(text)
        except BaseException as error:
            if not is_panic(error):
                raise
            return []  # no token changes where less is drafted
        return tokens if all(token in self._lengths for token in tokens) else []

    def _siblings(self, tokens: list[int], text: bytes, max_depth: int) -> list[tuple[int, int]]:
        """Return (token, parent) of other tokens that the text goes on with beside those of a chain, shallow first."""
        found: list[tuple[int, int]] = []
        at = 0
        for parent in range(-1, min(len(tokens), max_depth - 1)):
            at += self._lengths[tokens[parent]] if parent >= 0 else 0
            usual = tokens[parent + 1] if parent + 1 < len(tokens) else None
            begun = (text[at : at + length] for length in range(min(len(text) - at, _LONGEST), 0, -1))
            others = [self._ids[part] for part in begun if part in self._ids]
            found += [(token, parent) for token in [each for each in others if each != usual][:_SIBLINGS]]
        return found
