"""A request's grammar: where its output stands in it, and what may come next."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np

from verify_service.grammar.forced_texts import ForcedTexts
from verify_service.grammar.matcher import CompiledGrammar, GrammarFailure, TokenMatcher, Words

_WARY_STEPS = 8
"""Steps behind one whose tokens were illegal, in which a request counts as straying."""
DEAD_END = "no token of the vocabulary goes on from here"


class AllowedTokens(NamedTuple):
    """What may come next: `words` as of `TokenMatcher.allowed`.

    only: the id that comes next, whatever the logits: nothing is allowed but ends of the output, which the request's
    least length forbids; the grammar has the last word.
    """

    words: Words
    only: int | None = None

    def has(self, token: int) -> bool:
        """Return whether a token is among them."""
        return 0 <= token < 32 * len(self.words) and bool(int(self.words[token >> 5]) >> (token & 31) & 1)


class RequestGrammar:
    """Follows a request's output, and for the length of a step a path of tokens that are not output yet.

    `starts_after`: the grammar begins behind the first output token that is one of these; empty: with the first.
    `stops`: ids that end the output. Those of the model, and special tokens, may come where the grammar is complete and
    nowhere else; others are text to the grammar. `until_stopped`: the model's own come only where nothing else may.
    `min_tokens`: no stop may come before so many tokens, unless nothing else may.
    """

    def __init__(
        self,
        compiled: CompiledGrammar,
        *,
        starts_after: Collection[int] = (),
        stops: Collection[int] = (),
        until_stopped: bool = False,
        min_tokens: int = 0,
    ) -> None:
        tokenizer = compiled.tokenizer
        self._vocab_size = tokenizer.vocab_size
        self._starts = frozenset(starts_after)
        self._eos = frozenset(tokenizer.eos_token_ids)
        self._ends = self._eos | (frozenset(stops) & frozenset(tokenizer.specials.values()))
        self._stops = frozenset(stops) | self._eos
        self._until_stopped = until_stopped
        self._min_tokens = min_tokens
        self._forced_texts = compiled.forced_texts
        self._matcher = TokenMatcher(compiled)
        self._begun_at = 0 if not self._starts else None
        """Output tokens in front of the first that the grammar is about; None while that has not come."""
        self._length = 0
        """Output tokens followed, those of a path included."""
        self._output = 0
        """Of these, output for good."""
        self._wary = 0

    @property
    def strays(self) -> bool:
        """Whether a token of the last few steps was illegal, so that masks are worth computing ahead."""
        return self._wary > 0

    def end_step(self, *, strayed: bool) -> None:
        """A step is over, in which a token was illegal or none was found to be."""
        self._wary = _WARY_STEPS if strayed else max(0, self._wary - 1)

    @property
    def has_begun(self) -> bool:
        """Whether the grammar is about the next token."""
        return self._begun_at is not None

    @property
    def length(self) -> int:
        """Tokens followed, those of a path included."""
        return self._length

    def follow_output(self, tokens: Sequence[int]) -> None:
        """Take in the output so far, of which the beginning is what was taken in before; forgets any path.

        Raises GrammarFailure where the grammar does not allow it, and stays where it was.
        """
        self.go_back(self._output)
        new = tokens[self._output :]
        if self._begun_at is None:
            at = next((index for index, token in enumerate(new) if token in self._starts), None)
            if at is not None:
                self._matcher.follow(new[at + 1 :])
                self._begun_at = self._output + at + 1
        elif new:
            self._matcher.follow(new)
        self._output = self._length = len(tokens)

    @property
    def forced_texts(self) -> ForcedTexts:
        """How texts that must come next are drafted."""
        return self._forced_texts

    def step(self, token: int) -> None:
        """Go on by a token of a path, which is allowed and does not end the output."""
        if self._begun_at is not None:
            self._matcher.follow((token,))
        elif token in self._starts:
            self._begun_at = self._length + 1
        self._length += 1

    def go_back(self, length: int) -> None:
        """Forget tokens of a path down to this `length`."""
        if self._begun_at is not None:
            self._matcher.go_back(self._length - max(length, self._begun_at))
            if self._starts and self._begun_at > length:
                self._begun_at = None
        self._length = length

    def ends_output(self, token: int) -> bool:
        """Return whether this id, where it is allowed, is the output's last."""
        return token in self._stops

    def allows(self, token: int) -> bool:
        """Return whether a token that the logits chose may come next.

        False for an id that is none, and for an end that may have to give way: then `allowed` decides.
        """
        if self._begun_at is None:
            return token >= 0
        if token in self._ends:
            barred = (self._until_stopped and token in self._eos) or self._stops_barred
            return not barred and self._matcher.is_complete()
        return 0 <= token < self._vocab_size and self._matcher.allows(token)

    def allowed(self) -> AllowedTokens:
        """Return what may come next, where the grammar has begun. Raises GrammarFailure where nothing may."""
        words = self._matcher.allowed()
        complete = self._matcher.is_complete()
        for token in self._ends:
            _set(words, token, on=complete)
        if not words.any():
            raise GrammarFailure(DEAD_END)
        if self._until_stopped:
            words = _without(words, self._eos)[0]
        if not self._stops_barred:
            return AllowedTokens(words)
        words, left = _without(words, self._stops)
        return AllowedTokens(words, None if left else _lowest(words))

    @property
    def may_draft(self) -> bool:
        """Whether the grammar can be asked about tokens that may never be output, as `asked_for_drafts`."""
        return self._matcher.may_draft

    def asked_for_drafts(self) -> AbstractContextManager[None]:
        """Within, a question that trips a limit raises GrammarFailure, and ends drafting for the grammar."""
        return self._matcher.asked_for_drafts()

    def forced(self) -> bytes:
        """Return the bytes that must come next; none where that is open."""
        return self._matcher.forced() if self._begun_at is not None else b""

    @property
    def _stops_barred(self) -> bool:
        return self._length < self._min_tokens


def _set(words: Words, token: int, *, on: bool) -> None:
    bit = np.uint32(1 << (token & 31))
    if on:
        words[token >> 5] |= bit
    else:
        words[token >> 5] &= ~bit


def _without(words: Words, tokens: Collection[int]) -> tuple[Words, bool]:
    """Return what is left without these ids, and True; or everything, and False, where that is nothing."""
    left = words.copy()
    for token in tokens:
        _set(left, token, on=False)
    return (left, True) if left.any() else (words, False)


def _lowest(words: Words) -> int:
    first = int(np.flatnonzero(words)[0])
    word = int(words[first])
    return first * 32 + (word & -word).bit_length() - 1
