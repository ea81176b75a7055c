"""Follows tokens through a grammar, with llguidance."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from operator import methodcaller
from typing import Self, TypeVar, cast

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from slipstream.grammar.deep_stack import run_deep
from slipstream.grammar.tokenizer import GrammarTokenizer
from slipstream.grammar.trial import compile_text
from slipstream.panics import is_panic
from verify_service.grammar.forced_texts import ForcedTexts
from verify_service.grammar.processor_time import ProcessorTime

T = TypeVar("T")
RENEWAL_SECONDS = 0.05
"""Of a processor: what takes longer to compile is never compiled anew, which happens on the loop's thread."""
_LONG_TEXT = 4096
"""Bytes of a forced text whose length alone costs too much at each step."""
OUTPUT_EACH, OUTPUT_EXCESS = 1e-3, 10.0
"""Processor seconds of questions about a request's output: for each token, and beyond that for all; then it fails."""
DRAFT_EACH, DRAFT_EXCESS = 1e-4, 0.1
"""The same for questions about drafted tokens; then nothing is drafted for the request, or pruned, any more."""
_LIKELY_TOKENS = 8
"""Of a forced text whose end is not known."""
_LONGEST_FAILURE = 200
_MASK = 5
"""Tokens that a mask may take the time of."""
_FORCED, _IS_COMPLETE = methodcaller("compute_ff_bytes"), methodcaller("is_accepting")
Words = NDArray[np.uint32]


class GrammarFailure(Exception):  # noqa: N818 - a request's grammar fails, not the service
    """The output cannot go on: the grammar has tripped a limit, or allows nothing. The message says which."""


@dataclass(slots=True, eq=False)
class CompiledGrammar:
    """A grammar that can be followed; `start` has followed nothing, and never does: matchers are its copies.

    Copies share what was built lazily, which counts against the grammar's limits; `renew` begins with nothing built.
    may_draft: no question about tokens that are not output has tripped a limit yet; afterwards none is asked, and never
    one of what cannot be renewed. may_be_endless: llguidance is never asked for all of the text that must come next.
    """

    text: str
    tokenizer: GrammarTokenizer
    forced_texts: ForcedTexts
    start: LLMatcher
    may_draft: bool = True
    renewable: bool = True
    may_be_endless: bool = True

    @classmethod
    def compile(
        cls, text: str, tokenizer: GrammarTokenizer, forced_texts: ForcedTexts, *, may_be_endless: bool = True
    ) -> Self:
        """Compile what `check` has taken. `start` may be in error."""
        start, seconds = _compiled(text, tokenizer)
        quick = seconds <= RENEWAL_SECONDS
        return cls(
            text, tokenizer, forced_texts, start,
            may_draft=quick, renewable=quick, may_be_endless=may_be_endless,
        )  # fmt: skip

    def renew(self) -> None:
        """Begin with nothing built; as it was where that cannot be done."""
        try:
            self.start, _ = _compiled(self.text, self.tokenizer)
        except BaseException as error:  # noqa: BLE001 - those that are no panic are raised again
            _words_of_panic(error)


def _compiled(text: str, tokenizer: GrammarTokenizer) -> tuple[LLMatcher, float]:
    """Return a matcher that has followed nothing, and what it took, in seconds of a processor."""

    def compile_timed() -> tuple[LLMatcher, float]:
        begun = time.thread_time()
        start = compile_text(text, tokenizer)
        return start, time.thread_time() - begun

    return run_deep(compile_timed)


class _AsDrafts(AbstractContextManager[None]):
    """Within, a matcher's questions are about tokens that may never be output."""

    __slots__ = ("_matcher",)

    def __init__(self, matcher: TokenMatcher) -> None:
        self._matcher = matcher

    def __enter__(self) -> None:
        self._matcher.drafting = True

    def __exit__(self, *_: object) -> None:
        self._matcher.drafting = False


class TokenMatcher:
    """Where in a grammar a sequence of tokens has led; none of the tokens ends the output.

    What was built lazily depends on which tokens matchers of the grammar were asked about, drafted ones and those of
    other requests too. So what trips a limit is tried again by a matcher that was asked about nothing but the tokens
    followed: its verdict is final, and is asked for however often others have tripped one. Only a grammar that takes
    long to compile is not tried again. While `drafting`, questions are about tokens that may never be output: what
    these trip is not tried again, and ends drafting for the grammar. A panic of llguidance is what trips a limit.
    """

    def __init__(self, compiled: CompiledGrammar) -> None:
        self._compiled = compiled
        self._source = compiled.start
        """What the matcher is a copy of, and shares what is built lazily with."""
        self._matcher = self._source.deep_copy()
        self._followed: list[int] = []
        self._for_output = ProcessorTime(each=OUTPUT_EACH, excess=OUTPUT_EXCESS)
        self._for_drafts = ProcessorTime(each=DRAFT_EACH, excess=DRAFT_EXCESS)
        self._masks_alone = self._follows_alone = False
        """Whether it is asked by itself, as one that was asked together with it took long."""
        self._broken = ""
        """Why the matcher is not where the tokens followed led; what a panic said that kept it from there."""
        self.drafting = False

    def __len__(self) -> int:
        """Tokens followed."""
        return len(self._followed)

    @property
    def may_draft(self) -> bool:
        """Whether questions may be asked about tokens that may never be output."""
        return self._compiled.may_draft and not self._for_drafts.is_spent

    def asked_for_drafts(self) -> AbstractContextManager[None]:
        """Within, questions are about tokens that may never be output."""
        return _AsDrafts(self)

    def follow(self, tokens: Sequence[int]) -> None:
        """Go on by tokens that the grammar allows; GrammarFailure where it does not."""
        ids = list(tokens)
        begun = time.thread_time() if self._follows_alone else 0.0
        self._ask(lambda matcher: matcher.consume_tokens(ids), tokens=len(ids))
        self._follows_alone = self._follows_alone and time.thread_time() - begun > len(ids) * OUTPUT_EACH
        self._followed += ids

    def go_back(self, count: int) -> None:
        """Forget the last `count` tokens; none where that is not above 0."""
        if count <= 0:
            return
        del self._followed[-count:]
        try:
            gone = self._matcher.rollback(count) and not self._matcher.is_error()
        except BaseException as error:  # noqa: BLE001 - those that are no panic are raised again
            gone = not _words_of_panic(error)
        if not gone or self._broken:
            self._start_again()

    def allows(self, token: int) -> bool:
        """Return whether the grammar goes on by this id of the vocabulary, which does not end the output."""
        return self._ask(lambda matcher: matcher.validate_tokens([token])) == 1

    def is_complete(self) -> bool:
        """Return whether the output may end here."""
        return cast(bool, self._ask(_IS_COMPLETE))

    def allowed(self, room: Words | None = None) -> tuple[Words, bool]:
        """Return which ids may come next, and whether the output may end here.

        Bit i of word i // 32 is id i: uint32 [ceil(vocab / 32)], the caller's own or `room`. Where this raises, what is
        in the room means nothing.
        """
        words = np.empty(-(-self._compiled.tokenizer.vocab_size // 32), np.uint32) if room is None else room
        place, size = words.ctypes.data, words.nbytes
        begun = time.thread_time() if self._masks_alone else 0.0

        def asked(matcher: LLMatcher) -> bool:
            matcher.unsafe_compute_mask_ptr(place, size)
            return matcher.is_accepting()

        complete = self._ask(asked, tokens=_MASK)
        self._masks_alone = self._masks_alone and time.thread_time() - begun > _MASK * OUTPUT_EACH
        return words, complete

    def asked_together(self, *, to_follow: bool = False) -> LLMatcher | None:
        """Return what other threads may ask at once with others, for a mask or `to_follow` a token.

        None where `allowed` or `follow` is to ask. Nobody counts what threads take of a processor: those that were
        asked while one took long are asked alone, and those that take long then still are.
        """
        alone = self._follows_alone if to_follow else self._masks_alone
        budget = self._for_drafts if self.drafting else self._for_output
        return None if alone or self._broken or budget.is_spent else self._matcher

    def answered_together(self, *, quick: bool, drafted: bool = False) -> bool | None:
        """Return `is_complete` of that matcher, which has given its mask; None where it has failed.

        It is asked alone from now on where not all that were asked were `quick`. drafted: it was asked for masks of
        drafted tokens as well, so that a failure ends drafting for the grammar, and says nothing of the output.
        """
        self._masks_alone |= not quick
        try:
            if not self._matcher.is_error():
                return self._matcher.is_accepting()
        except BaseException as error:  # noqa: BLE001 - those that are no panic are raised again
            _words_of_panic(error)
        if drafted:
            self._compiled.may_draft = False
            self._renew()
        return None

    def abandoned(self) -> None:
        """What was asked for drafted tokens together with others was not answered: nobody knows where it stands."""
        self._start_again()

    def followed_together(self, token: int, *, followed: bool, quick: bool) -> None:
        """That matcher has `followed` a token, or failed, and is where it was before; `quick` as above."""
        self._follows_alone |= not quick
        if followed:
            self._followed.append(token)
        else:
            self._start_again()

    def forced(self) -> bytes:
        """Return the bytes that must come next, or what may well; none where that is open."""
        if self._compiled.may_be_endless:
            return self._likely()
        text = cast(bytes, self._ask(_FORCED))
        if len(text) > _LONG_TEXT:
            self._compiled.may_draft = False
        return text

    def _likely(self) -> bytes:
        """Return the text of a few tokens, at each of which all that are allowed begin one another."""
        begun, text = len(self), b""
        try:
            for _ in range(_LIKELY_TOKENS):
                if self.is_complete():
                    break
                token, longest = self._compiled.forced_texts.only_text(self.allowed()[0])
                if not longest:
                    break
                text += longest
                self.follow((token,))
        finally:
            self.go_back(len(self) - begun)
        return text

    def _ask(self, question: Callable[[LLMatcher], T], tokens: int = 1) -> T:
        answer, failure = self._asked_in_time(question, tokens)
        if not failure:
            return cast(T, answer)
        if self.drafting:
            self._compiled.may_draft = False
            self._renew()
            raise GrammarFailure("drafting has tripped a limit")
        for _ in range(2 if self._compiled.renewable else 0):
            alone = self._renew()
            answer, failure = self._asked_in_time(question, tokens)
            if not failure:
                return cast(T, answer)
            if alone:
                break
        self._start_again()
        raise GrammarFailure(failure)

    def _asked_in_time(self, question: Callable[[LLMatcher], T], tokens: int) -> tuple[T | None, str]:
        """Return the answer, and why there is none."""
        budget = self._for_drafts if self.drafting else self._for_output
        if budget.is_spent:
            raise GrammarFailure("it takes more processor time than a request has for its grammar")
        if self._broken:
            return None, self._broken
        try:
            answer = budget.ask(question, self._matcher, tokens)
            if not self._matcher.is_error():
                return answer, ""
            return answer, self._matcher.get_error().strip().partition("\n")[0][:_LONGEST_FAILURE]
        except BaseException as error:  # noqa: BLE001 - those that are no panic are raised again
            return None, _words_of_panic(error)

    def _renew(self) -> bool:
        """Go on by a matcher of a newer source; return whether that is a new one, of which there is no other copy."""
        alone = self._compiled.renewable and self._compiled.start is self._source
        if alone:
            self._compiled.renew()
        self._start_again()
        return alone

    def _start_again(self) -> None:
        """Follow what was followed by another matcher."""
        self._source = self._compiled.start
        try:
            self._matcher = self._source.deep_copy()
            if self._followed:
                self._matcher.consume_tokens(self._followed)
            self._broken = ""
        except BaseException as error:  # noqa: BLE001 - those that are no panic are raised again
            self._broken = _words_of_panic(error)


def _words_of_panic(error: BaseException) -> str:
    """Return what a panic of llguidance says, which pyo3 raises as no Exception; raise anything else again."""
    if not is_panic(error):
        raise error
    return f"panic: {error}"[:_LONGEST_FAILURE]
