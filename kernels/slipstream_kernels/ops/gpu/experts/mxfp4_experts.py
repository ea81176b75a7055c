"""Weights of experts in MXFP4, as the GPU's kernels read them: in the order of `ops.gpu.packed.packed_weight`.

Numbers are e2m1, of which 32 of a row share a power of two (OCP Microscaling Formats, version 1.0).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import dot
from slipstream_kernels.ops.gpu.packed.fragments import ROWS, decoded_tile, groups_at, words_at
from slipstream_kernels.ops.gpu.packed.packed_weight import UNIT, WORDS, chunk_of, codes_of, words_of
from slipstream_kernels.ops.quantised_weight import QuantisedWeight, decode, halves, paired

GROUP = 32
"""Columns that share a scale."""
CHUNK = chunk_of("e2m1")
_ROWS, _CHUNK, _UNIT = tl.constexpr(ROWS), tl.constexpr(CHUNK), tl.constexpr(UNIT)
_EXPONENTS = CHUNK // GROUP


@dataclass(frozen=True, slots=True)
class Mxfp4Experts:
    """Weights [experts, N, K], contiguous; N is a multiple of UNIT, and K of GROUP.

    codes: int32 [experts, units of N, chunks of K, WORDS]; those beyond K are 0.
    exponents: int32 [experts, chunks of K, N], each the exponents of a row's groups in a chunk, 127 too large, from the
    lowest byte on. inputs: K.
    """

    codes: torch.Tensor
    exponents: torch.Tensor
    inputs: int

    @classmethod
    def empty(cls, shape: tuple[int, int, int], device: torch.device | str) -> Mxfp4Experts:
        """Room for weights of a shape."""
        experts, outputs, inputs = shape
        assert outputs % UNIT == inputs % GROUP == 0
        chunks = -(-inputs // CHUNK)
        codes = torch.empty(experts, outputs // UNIT, chunks, WORDS, dtype=torch.int32, device=device)
        return cls(codes, torch.empty(experts, chunks, outputs, dtype=torch.int32, device=device), inputs)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(experts, N, K)."""
        return len(self), self.exponents.shape[2], self.inputs

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return self.codes.nbytes + self.exponents.nbytes

    def __len__(self) -> int:
        """Experts."""
        return len(self.codes)

    def put(self, expert: int, weight: QuantisedWeight) -> None:
        """Write the weight of an expert."""
        self.codes[expert].copy_(words_of(halves(weight.codes), "e2m1"))
        self.exponents[expert].copy_(exponents_of(weight.scales))

    def decoded(self, expert: int) -> torch.Tensor:
        """bfloat16 [N, K] of an expert."""
        codes = paired(codes_of(self.codes[expert], "e2m1"))[:, : self.inputs // 2]
        words = self.exponents[expert].t().clone(memory_format=torch.contiguous_format)
        exponents = words.view(torch.uint8)[:, : self.inputs // GROUP].int()
        scales = (exponents << 23).view(torch.float32)
        return decode(QuantisedWeight("e2m1", codes, scales, None, GROUP))


def exponents_of(scales: torch.Tensor) -> torch.Tensor:
    """int32 [chunks of K, N], see `Mxfp4Experts`, of powers of two [N, K / GROUP] from 2^-126 to 2^127."""
    powers = scales.bfloat16()
    outputs, groups = powers.shape
    whole = torch.zeros(outputs, -(-groups // _EXPONENTS) * _EXPONENTS, dtype=torch.uint8, device=scales.device)
    whole[:, :groups] = (powers.view(torch.int16).int() >> 7).to(torch.uint8)
    return whole.view(torch.int32).t()


@triton.jit
def mxfp4_sums(
    x_at: tl.tensor,
    codes: tl.tensor,
    exponents: tl.tensor,
    present: tl.tensor,
    unit: tl.tensor,
    units: tl.tensor,
    inputs: tl.tensor,
    chunks: tl.tensor,
    TOKENS: tl.constexpr,
) -> Any:
    """`chained_sums` of 64 rows from `unit` on of an expert's weight; pointers to the rows of x [TOKENS, 1].

    codes, exponents: of the expert. On GPUs that have asynchronous products `hopper_experts` is in its place.
    """
    sums = tl.zeros((_ROWS, TOKENS), tl.float32)
    for start in range(0, inputs, _CHUNK):
        chunk = start // _CHUNK
        words = words_at(codes, unit, units, chunk, chunks, 1)
        scales = groups_at(exponents, unit, units, chunk, chunks, 1, _CHUNK, _CHUNK)
        columns = start + tl.arange(0, _CHUNK)
        values = tl.load(x_at + columns[None, :], mask=present & (columns < inputs)[None, :], other=0.0)
        sums = dot(decoded_tile(words, scales, 0.0, "e2m1", False, 1), tl.trans(values), sums)
    return sums
