"""Hidden states as proposers get them, from the bytes of a Tensor message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from draft_service.proposers.base import CPU, Proposer
from slipstream.rpc.errors import UnavailableError

if TYPE_CHECKING:
    import torch

    from slipstream_kernels.models.capture_layers import Bits


def bfloat16_rows(shape: Sequence[int], data: bytes) -> torch.Tensor:
    """A writable bfloat16 tensor [rows, columns], both at least 1, of little-endian numbers.

    UnavailableError unless the shape is of that kind and `data` fits it. Draft services whose proposers want no states
    need no torch: it is imported here.
    """
    if len(shape) != 2 or min(shape) < 1 or len(data) != 2 * shape[0] * shape[1]:
        raise UnavailableError(f"states of shape {list(shape)[:8]} in {len(data)} bytes")
    import torch

    return torch.frombuffer(bytearray(data), dtype=torch.bfloat16).view(*shape)


def placed(states: torch.Tensor, proposer: Proposer) -> torch.Tensor:
    """The states where a proposer takes them."""
    return states.cpu() if states.is_cuda and proposer.state_device == CPU else states


def bfloat16_copy(bits: Bits) -> torch.Tensor:
    """The same numbers as a bfloat16 tensor of their own."""
    return bfloat16_view(bits.copy())


def bfloat16_view(bits: Bits) -> torch.Tensor:
    """The same memory as a bfloat16 tensor; nobody else writes it any more."""
    import torch

    return torch.from_numpy(bits.view("int16")).view(torch.bfloat16)
