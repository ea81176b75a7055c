"""Ops of linear layers whose weights may be of e4m3 with activations in e4m3, made of those of other weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from slipstream_kernels.ops.gpu.fp8_linear.fp8_weight import Fp8Weight

Op = Callable[..., None]


@dataclass(frozen=True, slots=True)
class CodeRoom:
    """Where a layer's activations are quantised; layers that follow one another share it.

    codes: uint8 [rows * K] of the largest pass and the widest layer. scales: float32 [rows].
    """

    codes: torch.Tensor
    scales: torch.Tensor

    @classmethod
    def empty(cls, rows: int, inputs: int, device: torch.device | str) -> CodeRoom:
        """For passes of up to so many rows, and layers of up to so many inputs."""
        return cls(torch.empty(rows * inputs, dtype=torch.uint8, device=device), torch.empty(rows, device=device))

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes

    def of(self, rows: int, inputs: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes [rows, inputs] and scales [rows] at the room's start."""
        return self.codes[: rows * inputs].view(rows, inputs), self.scales[:rows]


@dataclass(frozen=True, slots=True)
class Fp8Linear:
    """`linear`, or `gated_linear`, of weights of e4m3 by way of `room`; of all others by `other`."""

    room: CodeRoom
    quantise: Op
    products: Op
    other: Op
    gated: bool = False

    def __call__(self, x: torch.Tensor, weight: Any, out: torch.Tensor, **addends: Any) -> None:
        if not isinstance(weight, Fp8Weight):
            self.other(x, weight, out, **addends)
            return
        codes, scales = self.room.of(*x.shape)
        self.quantise(x, codes, scales)
        self.products(codes, scales, weight, out, gated=self.gated, **addends)


def _chosen(of_fp8: Op, other: Op, x: torch.Tensor, weight: Any, *operands: Any, **more: Any) -> None:
    (of_fp8 if isinstance(weight, Fp8Weight) else other)(x, weight, *operands, **more)


def by_weight(of_fp8: Op, other: Op) -> Op:
    """An op by `of_fp8` where its weight is of e4m3 with activations in e4m3, else by `other`."""
    return partial(_chosen, of_fp8, other)
