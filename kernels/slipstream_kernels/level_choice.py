"""How many levels of drafted trees a step is worth, of which depth, in one compiled call."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from slipstream_kernels.jit.compiler import kernel

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@kernel
def best_levels(
    chances: Floats, levels: Ints, passes: Floats, waits: Floats, tokens: float, least: float
) -> tuple[int, int]:
    """The deepest level to wait for, 0 for no trees, and how many levels up to that depth to take, the first ones.

    chances, levels: [levels offered], tokens that each is expected to bring, the most first, and how deep each is.
    passes: [levels offered], seconds of a pass with the nodes of 1, 2, ... of them. waits: [depths], seconds of the
    wait for trees so many levels deep. A step brings `tokens` without them, and trees must make more than `least`
    tokens a second. A depth that makes fewer than the one before ends the search: those beyond are waited for longer.
    """
    highest, deepest, taken = 0.0, 0, 0
    for depth in range(1, len(waits) + 1):
        expected, within, best, first = tokens, 0, 0.0, 0
        for place in range(len(levels)):
            if levels[place] <= depth:
                expected += chances[place]
                rate = expected / (passes[within] + waits[depth - 1])
                within += 1
                if rate > best:
                    best, first = rate, within
        if best < highest:
            break
        highest = best
        if best > least:
            least, deepest, taken = best, depth, first
    return deepest, taken
