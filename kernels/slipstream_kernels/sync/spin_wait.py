"""Spinning on a word of memory in compiled code, without the GIL.

It pauses between polls, so that the core's other hardware thread gets most of the execution units.
"""

from __future__ import annotations

from slipstream_kernels.jit.compiler import kernel
from slipstream_kernels.jit.intrinsics import atomic_load, pause


@kernel
def spin_wait(address: int, value: int, turns: int) -> None:
    """Return once the 64-bit word at `address` differs from `value`, or after `turns` polls."""
    for _ in range(turns):
        if atomic_load(address) != value:
            break
        pause()
