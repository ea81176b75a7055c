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
class CodedRows:
    """A layer's input: codes uint8 [n, K], scales float32 [n], and the bfloat16 rows [n, K] where they are kept.

    It lies in a room, and holds until another layer's activations are quantised.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    rows: torch.Tensor | None

    def __len__(self) -> int:
        return len(self.codes)


LayerInput = torch.Tensor | CodedRows
"""Of a layer: coded only where its weight is of e4m3."""


@dataclass(frozen=True, slots=True)
class InputNorm:
    """`rms_norm` in front of a layer, which quantises as well, to `room`, where that layer's weight is of e4m3."""

    norm: Op
    room: CodeRoom | None

    def __call__(
        self, x: torch.Tensor, gain: torch.Tensor, out: torch.Tensor, eps: float, weight: Any, *, kept: bool
    ) -> LayerInput:
        """The layer's input. `out` is room for bfloat16 rows; `kept`: they are wanted beside codes."""
        if self.room is None or not isinstance(weight, Fp8Weight):
            self.norm(x, gain, out, eps)
            return out
        coded = CodedRows(*self.room.of(*x.shape), out if kept else None)
        self.norm(x, gain, coded.rows, eps, codes=coded.codes, scales=coded.scales)
        return coded


@dataclass(frozen=True, slots=True)
class Fp8Linear:
    """`linear`, or `gated_linear`, of weights of e4m3 by way of `room`; of all others by `other`."""

    room: CodeRoom
    quantise: Op
    products: Op
    other: Op
    gated: bool = False

    def __call__(self, x: LayerInput, weight: Any, out: torch.Tensor, **addends: Any) -> None:
        if not isinstance(weight, Fp8Weight):
            self.other(x, weight, out, **addends)
            return
        coded = x if isinstance(x, CodedRows) else self._coded(x)
        self.products(coded.codes, coded.scales, weight, out, gated=self.gated, **addends)

    def _coded(self, x: torch.Tensor) -> CodedRows:
        coded = CodedRows(*self.room.of(*x.shape), x)
        self.quantise(x, coded.codes, coded.scales)
        return coded


def _on_rows(op: Op, x: LayerInput, *operands: Any) -> None:
    op(x.rows if isinstance(x, CodedRows) else x, *operands)


def on_rows(op: Op) -> Op:
    """The op of a layer's input in bfloat16, which is kept."""
    return partial(_on_rows, op)


def _chosen(of_fp8: Op, other: Op, x: LayerInput, weight: Any, *operands: Any, **more: Any) -> None:
    (of_fp8 if isinstance(weight, Fp8Weight) else other)(x, weight, *operands, **more)


def by_weight(of_fp8: Op, other: Op) -> Op:
    """An op by `of_fp8` where its weight is of e4m3 with activations in e4m3, else by `other`."""
    return partial(_chosen, of_fp8, other)
