"""The compiled choice of levels against one that tries them all."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream_kernels.level_choice import best_levels


def plain(
    chances: np.ndarray, levels: np.ndarray, passes: np.ndarray, waits: np.ndarray, tokens: float, least: float
) -> tuple[int, int]:
    found, highest = (0, 0), 0.0
    for depth, wait in enumerate(waits.tolist(), start=1):
        within = chances[levels <= depth]
        rates = (tokens + np.cumsum(within)) / (passes[: len(within)] + wait)
        at = int(rates.argmax())
        if rates[at] < highest:
            break
        highest = float(rates[at])
        if highest > least:
            found, least = (depth, at + 1), highest
    return found


@pytest.mark.parametrize("seed", range(50))
def test_it_finds_what_trying_all_finds(seed: int) -> None:
    draw = np.random.default_rng(seed)
    offered = int(draw.integers(1, 200))
    chances = np.sort(draw.uniform(0.02, 0.98, offered))[::-1].copy()
    levels = draw.integers(1, 9, offered)
    levels[0] = 1
    passes = np.cumsum(draw.uniform(0.0, 0.02, offered)) + 1.0
    waits = np.cumsum(draw.uniform(0.0, 0.2, int(levels.max())))
    tokens, least = float(draw.integers(1, 20)), float(draw.uniform(0.0, 20.0))
    args = chances, levels, passes, waits, tokens, least
    assert best_levels(*args) == plain(*args)


def test_nothing_offered_is_nothing_taken() -> None:
    none = np.empty(0)
    assert best_levels(none, np.empty(0, np.int64), none, none, 1.0, 0.5) == (0, 0)


def test_as_much_as_must_be_made_is_not_enough() -> None:
    one = np.ones(1)
    assert best_levels(one, np.ones(1, np.int64), one, one, 1.0, 1.0) == (0, 0)
    assert best_levels(one, np.ones(1, np.int64), one, one, 1.0, 0.9) == (1, 1)
