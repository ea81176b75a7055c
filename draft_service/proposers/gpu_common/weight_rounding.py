"""Whether the weights of a head lose something on a GPU, which holds them as bfloat16."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import torch

_log = logging.getLogger(__name__)

_CHUNK = 1 << 22
"""Numbers that are compared at a time."""


def tell_rounding(tensors: Iterable[torch.Tensor], device: torch.device) -> None:
    """Write a line where bfloat16 does not hold all numbers of some tensors, as of a head in float16."""
    wider = (tensor for tensor in tensors if tensor.dtype != torch.bfloat16)
    chunks = (chunk.float() for tensor in wider for chunk in tensor.flatten().split(_CHUNK))
    if any(not torch.equal(chunk, chunk.to(torch.bfloat16).float()) for chunk in chunks):
        _log.warning("the head's weights are rounded to bfloat16 on %s", device)
