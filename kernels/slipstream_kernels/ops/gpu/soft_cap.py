"""Soft bounds of scores and logits: cap * tanh(x / cap) (arXiv 2408.00118, section 2)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous

_BLOCK = 2048


@triton.jit
def tanh(x: tl.tensor) -> tl.tensor:
    """float32; the same for -x but for the sign."""
    decay = tl.exp(-2.0 * tl.abs(x))  # at most 1: nothing overflows
    bound = (1.0 - decay) / (1.0 + decay)
    return tl.where(x >= 0, bound, -bound)


@triton.jit
def _soft_cap(x: tl.tensor, size: int, CAP: tl.constexpr, BLOCK: tl.constexpr) -> None:
    release_next()
    wait_for_previous()
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = places < size
    values = tl.load(x + places, mask=inside, other=0.0)
    tl.store(x + places, tanh(values / CAP) * CAP, mask=inside)


def soft_cap(x: torch.Tensor, cap: float) -> None:
    """x = cap * tanh(x / cap) in place: float32, contiguous."""
    assert x.is_contiguous()
    launch(_soft_cap, (triton.cdiv(x.numel(), _BLOCK),), x, x.numel(), CAP=cap, BLOCK=_BLOCK)


def soft_cap_reference(x: torch.Tensor, cap: float) -> None:
    """The same in torch."""
    x.copy_(cap * torch.tanh(x / cap))
