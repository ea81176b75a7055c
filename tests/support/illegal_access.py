"""A kernel that writes where it may not."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BEYOND = 1 << 42
"""Elements; further than any allocation reaches."""


@triton.jit
def scribble(pointer, offset):
    """Write behind `pointer`, which is int32*, by so many elements."""
    tl.store(pointer + offset, 1)


def access_illegally(device: str) -> None:
    """Fault a GPU; raises what it says of that."""
    with torch.cuda.device(device):
        memory = torch.zeros(16, dtype=torch.int32, device=device)
        scribble[(1,)](memory, BEYOND)
        torch.cuda.synchronize()
