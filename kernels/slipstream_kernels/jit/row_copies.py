"""Rows copied from place to place in one call that leaves the interpreter to others."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from slipstream_kernels.jit.compiler import kernel


@kernel
def copy_rows(
    source: npt.NDArray[np.uint16],
    rows: npt.NDArray[np.int64],
    target: npt.NDArray[np.uint16],
    places: npt.NDArray[np.int64],
) -> None:
    """target[places] = source[rows], one after the other; both [any, width], contiguous. Nothing is checked."""
    for index in range(len(rows)):
        row, place = rows[index], places[index]
        for column in range(source.shape[1]):
            target[place, column] = source[row, column]
