"""Looking at a word of memory until it changes, by compiled code: other threads have the interpreter meanwhile.

It rests between looks, so that whoever shares the core's execution units, as another of its threads, gets most of them.
"""

from __future__ import annotations

from slipstream_kernels.jit.compiler import kernel
from slipstream_kernels.jit.intrinsics import atomic_load, pause


@kernel
def spin_wait(address: int, value: int, turns: int) -> None:
    """Return once the 64-bit word at an address differs from `value`, or after so many looks."""
    for _ in range(turns):
        if atomic_load(address) != value:
            break
        pause()
