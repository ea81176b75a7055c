"""Masks of many requests at once, by several threads of llguidance's, for which it needs no lock of the interpreter."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import numpy as np
from llguidance import LLExecutor, LLMatcher
from numpy.typing import NDArray

from slipstream.panics import is_panic
from verify_service.grammar.matcher import OUTPUT_EACH
from verify_service.grammar.request_grammar import RequestGrammar

_log = logging.getLogger(__name__)
MOST_THREADS = 8
_EACH_THREAD = 8
"""Masks of a batch for each thread: some 0.4 ms, within which nothing else is asked."""
SLOW_SECONDS = 5 * OUTPUT_EACH
"""A batch that takes longer has a grammar in it that may cost too much: each is asked alone then, and counted."""
WordRows = NDArray[np.uint32]


class MaskBatch:
    """Used by one thread at a time. `rows` uint32 [n, words] is where masks of a step are written, as `Words`."""

    def __init__(self, rows: WordRows, threads: int) -> None:
        if not rows.flags.c_contiguous:
            raise ValueError("rows of masks must lie one behind the other")
        self.rows = rows
        self._threads = max(1, min(MOST_THREADS, threads))
        self._executor: LLExecutor | None = None

    @property
    def size(self) -> int:
        """Masks to be asked for at once; one where there is no thread beside the asking one."""
        return 1 if self._threads == 1 else _EACH_THREAD * self._threads

    def ask(self, grammars: Sequence[RequestGrammar], first: int) -> list[bool]:
        """Ask where each of the grammars stands, which are different ones, for its mask, into rows `first`, ...

        Return for which `RequestGrammar.allowed` need not ask any more: one that fails tells why there, and one that is
        alone is counted there.
        """
        asked = [
            (matcher, first + place)
            for place, grammar in enumerate(grammars)
            if (matcher := grammar.asked_together()) is not None
        ]
        begun = time.perf_counter()
        if len(asked) < 2 or self._threads == 1 or not self._compute(asked):
            return [False] * len(grammars)
        quick = time.perf_counter() - begun < SLOW_SECONDS
        there = {row for _, row in asked}
        return [
            first + place in there and grammar.answered_together(quick=quick) for place, grammar in enumerate(grammars)
        ]

    def _compute(self, asked: list[tuple[LLMatcher, int]]) -> bool:
        """Return False where anything went wrong: then nobody knows with whom, and what is written is worth nothing."""
        rows, size = self.rows, self.rows.strides[0]
        try:
            if self._executor is None:
                self._executor = LLExecutor(self._threads)
            self._executor.unsafe_compute_mask_ptr(asked, rows.ctypes.data, size, len(rows))
        except Exception:  # noqa: BLE001 - each is asked alone then
            _log.debug("masks were not computed together", exc_info=True)
            return False
        except BaseException as error:
            if not is_panic(error):
                raise
            return False
        return True
