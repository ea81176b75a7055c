"""The sizes to which rounds and passes over text are padded: a CUDA graph has one shape."""

from __future__ import annotations

from typing import NamedTuple

from slipstream_kernels.models.gpu.draft.round.limits import DraftLimits

_FEW_ROWS = 64
"""Rows of text up to which padding costs next to nothing: the weights' bytes decide."""
_MULTIPLE = 16


class RoundBucket(NamedTuple):
    """`text_rows` rows of text and `levels` levels of trees for `sessions` sessions.

    No levels: a pass over text alone, of consecutive rows of any sessions. filtered: some session samples with top_k,
    top_p or min_p.
    """

    sessions: int
    text_rows: int
    levels: int
    filtered: bool = False

    @property
    def rows(self) -> int:
        """Of the first pass."""
        return self.text_rows


class RoundBuckets:
    """All buckets, and the choice among them."""

    def __init__(self, limits: DraftLimits) -> None:
        self._limits = limits
        self._sizes = limits.round_sizes
        most = limits.max_depth
        self._levels = sorted({levels for levels in (1, 2, 4, 8, 16, 32) if levels < most} | {most})
        self._text = {size: self._text_sizes(size) for size in self._sizes}
        chunk = padded(limits.chunk)
        self._chunks = sorted({min(_FEW_ROWS, chunk), chunk})

    @property
    def max_sessions(self) -> int:
        return self._sizes[-1]

    @property
    def max_text_rows(self) -> int:
        return max(self._chunks[-1], *(sizes[-1] for sizes in self._text.values()))

    def all(self) -> list[RoundBucket]:
        """Every bucket that is found often, the largest first; filtered ones of fewer levels come late, if at all."""
        most = self._levels[-1]
        rounds = [
            RoundBucket(size, rows, levels, filtered)
            for size in self._sizes
            for rows in self._text[size]
            for levels in self._levels
            for filtered in (False, True)
            if levels == most or not filtered
        ]
        return sorted(rounds, reverse=True) + [RoundBucket(0, rows, 0) for rows in reversed(self._chunks)]

    def find(self, sessions: int, text_rows: int, levels: int, *, filtered: bool) -> RoundBucket:
        """The smallest that holds a round; levels 0 asks for a pass over text. Raises ValueError where none does."""
        if not levels:
            return RoundBucket(0, _at_least(text_rows, self._chunks, "rows"), 0)
        size = _at_least(sessions, self._sizes, "sessions")
        rows = _at_least(text_rows, self._text[size], "rows of text")
        return RoundBucket(size, rows, _at_least(levels, self._levels, "levels"), filtered)

    def _text_sizes(self, sessions: int) -> list[int]:
        """Where many sessions have rows of text, few of them as a rule have many."""
        whole = padded(sessions * self._limits.text_rows)
        half = padded(sessions * -(-self._limits.text_rows // 2))
        return [whole] if whole <= _FEW_ROWS else sorted({half, whole})


def padded(rows: int) -> int:
    """A multiple of the rows that a matrix product takes anyway."""
    return -(-rows // _MULTIPLE) * _MULTIPLE


def _at_least(value: int, sizes: list[int] | tuple[int, ...], what: str) -> int:
    for size in sizes:
        if size >= value:
            return size
    raise ValueError(f"a round of {value} {what} is larger than {sizes[-1]}")
