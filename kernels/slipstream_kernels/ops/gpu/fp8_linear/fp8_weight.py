"""A weight of e4m3 as products of e4m3 read it: codes row by row, and a scale for each row."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Fp8Form:
    """A weight [outputs, inputs]; inputs are a multiple of 16."""

    outputs: int
    inputs: int

    @property
    def nbytes(self) -> int:
        """Of such a weight's tensors."""
        return self.outputs * (self.inputs + 4)

    def empty(self, device: torch.device | str) -> Fp8Weight:
        """A weight whose contents are undefined."""
        codes = torch.empty(self.outputs, self.inputs, dtype=torch.uint8, device=device)
        return Fp8Weight(codes, torch.empty(self.outputs, device=device))


@dataclass(frozen=True, slots=True)
class Fp8Weight:
    """A weight [N, K]: uint8 codes of e4m3 [N, K], contiguous, times float32 scales [N]."""

    codes: torch.Tensor
    scales: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        outputs, inputs = self.codes.shape
        return outputs, inputs

    @property
    def device(self) -> torch.device:
        return self.codes.device

    @property
    def nbytes(self) -> int:
        """Bytes of both tensors."""
        return self.codes.nbytes + self.scales.nbytes

    def __len__(self) -> int:
        return len(self.codes)
