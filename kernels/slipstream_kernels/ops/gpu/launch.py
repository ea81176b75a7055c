"""What all Triton kernels share: how they are launched, how they follow one another, and an exact dot product.

Products and sums are never contracted (`enable_fp_fusion=False`), so that the same expression gives the same bits in
every kernel that holds it. Kernels overlap by programmatic dependent launch on devices that have it: a kernel may start
before the one in front of it has ended, and calls `wait_for_previous` before it touches memory that kernels of the same
pass write; weights and the plan of the pass are there before its first kernel.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from slipstream_kernels.jit.cache_folders import settle_triton_cache

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"
"""Whether kernels run in Triton's interpreter, on the CPU."""


if not INTERPRETED:
    settle_triton_cache()


def _has_dependent_launch() -> bool:
    return not INTERPRETED and torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= 9


_UPCAST = tl.constexpr(INTERPRETED)
_DEPENDENT = tl.constexpr(_has_dependent_launch())


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, warps: int = 4, stages: int = 1, **constants: Any) -> None:
    """Launch `kernel` on `grid` programs with positional `args` and constexpr keyword `constants`."""
    kernel[grid](
        *args,
        **constants,
        num_warps=warps,
        num_stages=stages,
        enable_fp_fusion=False,
        launch_pdl=_DEPENDENT.value,
    )


@triton.jit
def wait_for_previous() -> None:
    """Wait until the kernels launched before have ended and their writes are visible.

    Every program of every kernel calls this, also one that has nothing to do: then the end of a kernel implies the end
    of all before it.
    """
    if _DEPENDENT:
        gdc_wait()


@triton.jit
def release_next() -> None:
    """Let the next kernel's programs start where they find room. Never makes this kernel's writes visible to them."""
    if _DEPENDENT:
        gdc_launch_dependents()


@triton.jit
def dot(a: tl.tensor, b: tl.tensor, total: tl.tensor) -> tl.tensor:
    """total + a b with float32 sums. The interpreter has no bfloat16 products, so operands are widened there."""
    if _UPCAST:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), total)
    return tl.dot(a, b, total)
