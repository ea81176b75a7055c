"""Ranges as they are applied and as they are said."""

from __future__ import annotations

import math

import pytest

from gateway.core import limits
from gateway.core.limits import Range


@pytest.mark.parametrize(
    ("allowed", "inside", "outside", "words"),
    [
        (limits.TEMPERATURE, (0, 1e-5, 0.7, 2), (-1, -0.0001, 1e-6, 2.001, math.nan), "0 or from 1e-05 to 2"),
        (limits.TOP_P, (1e-9, 0.5, 1), (0, -0.1, 1.01, math.nan), "greater than 0 and at most 1"),
        (limits.MIN_P, (0, 0.5, 1), (-0.1, 1.1, math.nan), "from 0 to 1"),
        (limits.PENALTY, (-2, -1.5, -0.001, 0, 2), (-2.01, 2.01, math.nan), "from -2 to 2"),
        (limits.BIAS, (-100, -1.5, 0, 100), (-100.5, 101, math.nan), "from -100 to 100"),
        (limits.REPETITION_PENALTY, (0.01, 1, 2), (0, 0.009, 2.1, math.nan), "from 0.01 to 2"),
        (limits.MAX_NODES, (1, 64), (0, 65), "from 1 to 64"),
    ],
)
def test_what_is_inside_and_how_it_is_said(
    allowed: Range, inside: tuple[float, ...], outside: tuple[float, ...], words: str
) -> None:
    assert [value for value in inside if value not in allowed] == []
    assert [value for value in outside if value in allowed] == []
    assert str(allowed) == words
