"""How a failed comparison of answers reads: which request, and which of its tokens, differs first.

Such a failure begins with ANSWERS_DIFFER, by which a run that tries timings again knows what it must not try again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

ANSWERS_DIFFER: Final = "answers differ"
_LEAST_TOKENS: Final = 4


def explain(left: Any, right: Any) -> list[str] | None:
    """Lines for two unequal answers, or lists of answers; None where these are something else."""
    if _is_answer(left) and _is_answer(right):
        return [f"{ANSWERS_DIFFER}: {_first(left, right)}"]
    if _are_answers(left) and _are_answers(right):
        if len(left) != len(right):
            return [f"{ANSWERS_DIFFER}: {len(left)} and {len(right)} of them"]
        apart = [index for index, pair in enumerate(zip(left, right, strict=True)) if pair[0] != pair[1]]
        first = apart[0]
        count = f"{len(apart)} of {len(left)}"
        return [f"{ANSWERS_DIFFER}: {count}; the first is request {first}: {_first(left[first], right[first])}"]
    return None


def _first(left: Sequence[int], right: Sequence[int]) -> str:
    place = next(
        (place for place, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]),
        min(len(left), len(right)),
    )
    return f"token {place}: {left[place : place + 4]} and {right[place : place + 4]}, of {len(left)} and {len(right)}"


def _is_answer(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) >= _LEAST_TOKENS
        and all(isinstance(token, int) and not isinstance(token, bool) for token in value)
    )


def _are_answers(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0 and all(map(_is_answer, value))
