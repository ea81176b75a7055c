"""A request's grammar: where its output stands in it, and what may come next."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np
from llguidance import LLMatcher

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
        self._eos_bits, self._end_bits, self._stop_bits = map(_bits_of, (self._eos, self._ends, self._stops))
        self._until_stopped = until_stopped
        self._min_tokens = min_tokens
        self._forced_texts = compiled.forced_texts
        self._matcher = TokenMatcher(compiled)
        self._begun_at = 0 if not self._starts else None
        """Output tokens in front of the first that the grammar is about; None while that has not come."""
        self._output = 0
        """Tokens followed that are output for good."""
        self._path: list[int] = []
        """Those followed behind them."""
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
        return self._output + len(self._path)

    def is_at(self, length: int) -> bool:
        """Whether output of so many tokens is what it has followed, so that there is nothing to do for it."""
        return length == self._output and not self._path

    def follow_output(self, tokens: Sequence[int]) -> None:
        """Take in the output so far, of which the beginning is what was taken in before; forgets any other path.

        Raises GrammarFailure where the grammar does not allow it, and stays within the output.
        """
        if len(tokens) == self._output and not self._path:
            return
        new = tokens[self._output :]
        if self._path:
            self.go_back(self._output + _common(self._path, new))
            new = new[len(self._path) :]
        if self._begun_at is None:
            at = next((index for index, token in enumerate(new) if token in self._starts), None)
            if at is not None:
                self._matcher.follow(new[at + 1 :])
                self._begun_at = len(tokens) - len(new) + at + 1
        elif new:
            self._matcher.follow(new)
        self._output = len(tokens)
        self._path.clear()

    def next_together(self, tokens: Sequence[int]) -> tuple[LLMatcher, int] | None:
        """As `follow_output`, up to the last token: return whom to ask for it together with others.

        None where that is not all there is to do. `followed_together` is to come before anything else.
        """
        new = tokens[self._output :]
        if self._begun_at is None or not new:
            return None
        if self._path:
            self.go_back(self._output + _common(self._path, new))
        matcher = self._matcher.asked_together(to_follow=True) if len(self._path) == len(new) - 1 else None
        return None if matcher is None else (matcher, new[-1])

    def followed_together(self, tokens: Sequence[int], *, followed: bool, quick: bool) -> None:
        """That matcher has `followed` the last token, or failed; not `quick`: it may be the one that took long."""
        self._matcher.followed_together(tokens[-1], followed=followed, quick=quick)
        if followed:
            self._output = len(tokens)
            self._path.clear()

    @property
    def forced_texts(self) -> ForcedTexts:
        """How texts that must come next are drafted."""
        return self._forced_texts

    def step(self, token: int) -> None:
        """Go on by a token of a path, which is allowed and does not end the output."""
        if self._begun_at is not None:
            self._matcher.follow((token,))
        elif token in self._starts:
            self._begun_at = self.length + 1
        self._path.append(token)

    def go_back(self, length: int) -> None:
        """Forget tokens of a path down to this `length`, which is not below that of the output."""
        if self._begun_at is not None:
            self._matcher.go_back(self.length - max(length, self._begun_at))
            if self._starts and self._begun_at > length:
                self._begun_at = None
        del self._path[length - self._output :]

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

    def allowed(self, room: Words | None = None, *, complete: bool | None = None, further: int = 0) -> AllowedTokens:
        """Return what may come next, where the grammar has begun. Raises GrammarFailure where nothing may.

        room: where the words are put, instead of an array of their own. complete: what `answered_together` has
        returned, where the matcher's mask is in the room; it is that of so many tokens `further` on.
        """
        if room is None or complete is None:
            words, complete = self._matcher.allowed(room)
        else:
            words = room
        for place, bit in self._end_bits:
            words[place] = words[place] | bit if complete else words[place] & ~bit
        if not words.any():
            raise GrammarFailure(DEAD_END)
        if self._until_stopped:
            _left_without(words, self._eos_bits)
        if not self._min_tokens or self.length + further >= self._min_tokens or _left_without(words, self._stop_bits):
            return AllowedTokens(words)
        return AllowedTokens(words, _lowest(words))

    @property
    def num_words(self) -> int:
        """Of a mask."""
        return -(-self._vocab_size // 32)

    def may_be_complete(self, words: Words) -> bool:
        """Whether the output may be complete where a matcher has given this mask, which has the model's ends then."""
        return not self._eos_bits or any(words[place] & bit for place, bit in self._eos_bits)

    def asked_together(self) -> LLMatcher | None:
        """Return what is asked for a mask together with others; None where `allowed` must ask, which takes count."""
        return self._matcher.asked_together()

    def answered_together(self, *, quick: bool, drafted: bool = False) -> bool | None:
        """Return whether the output may end here; None where what was asked so has failed. `quick` as above.

        drafted: masks behind drafted tokens were asked for, too.
        """
        return self._matcher.answered_together(quick=quick, drafted=drafted)

    def abandoned(self) -> None:
        """As of the matcher."""
        self._matcher.abandoned()

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
        return bool(self._min_tokens) and self.length < self._min_tokens


def _bits_of(tokens: Collection[int]) -> list[tuple[int, np.uint32]]:
    """Return the word and the bit of each id."""
    return [(token >> 5, np.uint32(1 << (token & 31))) for token in tokens]


def _left_without(words: Words, bits: Sequence[tuple[int, np.uint32]]) -> bool:
    """Take these ids away, and return True; or leave everything, and return False, where nothing would be left."""
    before = [words[place] for place, _ in bits]
    for place, bit in bits:
        words[place] &= ~bit
    if words.any():
        return True
    for (place, _), word in zip(reversed(bits), reversed(before), strict=True):
        words[place] = word
    return False


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens two sequences begin with that are the same."""
    count = 0
    for first, second in zip(one, other, strict=False):
        if first != second:
            break
        count += 1
    return count


def _lowest(words: Words) -> int:
    first = int(np.flatnonzero(words)[0])
    word = int(words[first])
    return first * 32 + (word & -word).bit_length() - 1
