"""Many requests' grammars asked at once, by several threads of llguidance's, which need no lock of the interpreter."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeVar

import numpy as np
from llguidance import LLExecutor, LLMatcher
from numpy.typing import NDArray

from slipstream.panics import is_panic
from verify_service.grammar.matcher import OUTPUT_EACH, GrammarFailure
from verify_service.grammar.request_grammar import AllowedTokens, RequestGrammar

_log = logging.getLogger(__name__)
T = TypeVar("T")
MOST_THREADS = 8
_EACH_THREAD = 8
"""Masks of a batch for each thread: some 0.4 ms, within which nothing else is asked."""
SLOW_SECONDS = 5 * OUTPUT_EACH
"""What takes longer has a grammar in it that may cost too much: each is asked alone then, and counted."""
WordRows = NDArray[np.uint32]


class Together:
    """Used by one thread at a time. All services of a process that have as many threads share them."""

    def __init__(self, threads: int) -> None:
        self._threads = max(1, min(MOST_THREADS, threads))

    @classmethod
    def beside(cls) -> Together:
        """With a thread for each processor but the asking one's."""
        return cls(len(os.sched_getaffinity(0)) - 1)

    @property
    def size(self) -> int:
        """Masks to be asked for at once; one where there is no thread beside the asking one."""
        return 1 if self._threads == 1 else _EACH_THREAD * self._threads

    def follow(self, asked: Sequence[tuple[RequestGrammar, Sequence[int]]]) -> None:
        """Have grammars, which are different ones, follow their outputs where one token each is left to follow.

        `RequestGrammar.follow_output` does what is left, and tells what fails.
        """
        if self._threads == 1:
            return
        found: list[tuple[RequestGrammar, Sequence[int], tuple[LLMatcher, int]]] = []
        for grammar, output in asked:
            try:
                one = grammar.next_together(output)
            except Exception:  # noqa: BLE001 - the others are followed all the same
                _log.exception("a grammar could not be brought to its output")
                continue
            if one is not None:
                found.append((grammar, output, one))
        if len(found) > 1:
            tokens = [each for *_, each in found]
            done, quick = self._timed(lambda executor: executor.consume_token_par(tokens), len(tokens))
            for (grammar, output, _), followed in zip(found, done or [False] * len(found), strict=True):
                grammar.followed_together(output, followed=followed, quick=quick)

    def masks(
        self, grammars: Sequence[RequestGrammar], rows: WordRows, first: int, chains: Sequence[Sequence[int]] = ()
    ) -> list[bool | None]:
        """Ask where each of the grammars stands, which are different ones, for its mask, into `rows` from `first` on.

        `rows` are uint32 [n, words], contiguous. chains: drafted tokens by grammar, none of which ends the output. The
        masks behind each of them follow the grammar's own in `rows`, up to the first token that is not legal; what
        comes behind that means nothing, nor do those of a grammar for which None is returned. Return of each whether
        the output is complete where it stands, as `RequestGrammar.allowed` takes it: None where that has to ask, as one
        that fails tells why there, and one that is asked alone is counted there.
        """
        found: list[bool | None] = [None] * len(grammars)
        if self._threads == 1:
            return found
        asked: list[tuple[int, LLMatcher, int, Sequence[int]]] = []
        row = first
        for place, (grammar, chain) in enumerate(zip(grammars, chains or [()] * len(grammars), strict=True)):
            if (matcher := grammar.asked_together()) is not None:
                asked.append((place, matcher, row, chain))
            row += 1 + len(chain)
        if row > len(rows):  # which llguidance does not look at
            raise ValueError(f"{row} masks have no room in {len(rows)} rows")
        drafted = [(matcher, row, [*chain]) for _, matcher, row, chain in asked if chain]
        if len(asked) < 2 and not drafted:
            return found
        plain = [(matcher, row) for _, matcher, row, chain in asked if not chain]
        memory = rows.ctypes.data, rows.strides[0], len(rows)

        def compute(executor: LLExecutor) -> bool:
            if plain:
                executor.unsafe_compute_mask_ptr(plain, *memory)
            if drafted:
                executor.unsafe_compute_mask_ptr_with_draft_token(drafted, *memory)
            return True

        done, quick = self._timed(compute, len(plain) + sum(1 + len(chain) for *_, chain in drafted))
        for place, _, _, chain in asked:
            if done:
                found[place] = grammars[place].answered_together(quick=quick, drafted=bool(chain))
            elif chain:
                grammars[place].abandoned()
        return found

    def allowed(self, grammars: Sequence[RequestGrammar]) -> list[AllowedTokens | None]:
        """Ask where each of the grammars stands, which are different ones; None of one that is to be asked alone."""
        rows = np.empty((len(grammars), grammars[0].num_words), np.uint32)
        found: list[AllowedTokens | None] = []
        for grammar, row, complete in zip(grammars, rows, self.masks(grammars, rows, 0), strict=True):
            try:
                found.append(None if complete is None else grammar.allowed(row, complete=complete))
            except GrammarFailure:
                found.append(None)
        return found

    def _timed(self, work: Callable[[LLExecutor], T], questions: int) -> tuple[T | None, bool]:
        """Return what work gives, and whether it was quick; None where anything went wrong, with whomever."""
        begun = time.perf_counter()
        try:
            done = work(_executor(self._threads))
        except Exception:  # noqa: BLE001 - each is asked alone then
            _log.debug("grammars were not asked together", exc_info=True)
            return None, True
        except BaseException as error:
            if not is_panic(error):
                raise
            return None, True
        return done, time.perf_counter() - begun < SLOW_SECONDS * max(1.0, questions / self.size)


@cache
def _executor(threads: int) -> LLExecutor:
    return LLExecutor(threads)
