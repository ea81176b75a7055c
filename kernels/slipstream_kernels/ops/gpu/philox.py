"""The published noise on the device: the bits of `ops/philox.py`, -log(-log(u)) in float64 rounded to float32."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu import sampling_table as table
from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.ops.philox import MULTIPLIERS, WEYL

_LOW = 0xFFFFFFFF
_ROUNDS = tl.constexpr(10)
_FACTOR_0, _FACTOR_1 = tl.constexpr(MULTIPLIERS[0]), tl.constexpr(MULTIPLIERS[1])
_WEYL_0, _WEYL_1 = tl.constexpr(WEYL[0]), tl.constexpr(WEYL[1])
_STEP, _LN2 = tl.constexpr(2.0**-23), tl.constexpr(math.log(2))
_FIELDS, _CHOICE = tl.constexpr(table.FIELDS), tl.constexpr(table.CHOICE)
_SEED_LOW, _SEED_HIGH = tl.constexpr(table.SEED_LOW), tl.constexpr(table.SEED_HIGH)


@triton.jit
def philox(
    c0: tl.tensor, c1: tl.tensor, c2: tl.tensor, c3: tl.tensor, k0: tl.tensor, k1: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Philox4x32-10 of uint32 counters and keys: four uint32 words."""
    for _ in tl.static_range(_ROUNDS):
        first = c0.to(tl.uint64) * _FACTOR_0
        second = c2.to(tl.uint64) * _FACTOR_1
        c0 = (second >> 32).to(tl.uint32) ^ c1 ^ k0
        c2 = (first >> 32).to(tl.uint32) ^ c3 ^ k1
        c1 = second.to(tl.uint32)
        c3 = first.to(tl.uint32)
        k0 = (k0.to(tl.uint64) + _WEYL_0).to(tl.uint32)
        k1 = (k1.to(tl.uint64) + _WEYL_1).to(tl.uint32)
    return c0, c1, c2, c3


@triton.jit
def noise_bits(ids: tl.tensor, position: tl.tensor, parameters: tl.tensor, line: tl.tensor) -> tl.tensor:
    """23 random bits, as int32, of int32 `ids` at an absolute position, for the request on this line."""
    fields = parameters + line.to(tl.int64) * _FIELDS
    k0 = tl.load(fields + _SEED_LOW).to(tl.uint32, bitcast=True)
    k1 = tl.load(fields + _SEED_HIGH).to(tl.uint32, bitcast=True)
    choice = tl.load(fields + _CHOICE).to(tl.uint32, bitcast=True)
    c0 = ids.to(tl.uint32, bitcast=True)
    c1 = tl.zeros_like(c0) + position.to(tl.uint32, bitcast=True)
    c2 = tl.zeros_like(c0) + choice
    bits, _, _, _ = philox(c0, c1, c2, tl.zeros_like(c0), k0, k1)
    return (bits >> 9).to(tl.int32)


@triton.jit
def noise_of(bits: tl.tensor) -> tl.tensor:
    """The float32 noise that 23 bits stand for."""
    u = (bits.to(tl.float64) + 0.5) * _STEP
    return (-tl.log(-tl.log(u))).to(tl.float32)


@triton.jit
def noise_bound(bits: tl.tensor) -> tl.tensor:
    """A float32 at or above `noise_of(bits)` and less than 0.01 from it, for a fraction of the price.

    -log(1 - w) is taken from below, for small w by the first terms of its series; device logarithms err by 2^-22.
    """
    u = (bits.to(tl.float32) + 0.5) * _STEP
    w = ((8388607 - bits).to(tl.float32) + 0.5) * _STEP
    series = w * (1.0 + w * (1.0 / 2.0 + w * (1.0 / 3.0 + w * (1.0 / 4.0))))
    return 0.001 - tl.log2(tl.where(w < 0.25, series, -(tl.log2(u) * _LN2))) * _LN2


@triton.jit
def noise_near(bits: tl.tensor) -> tl.tensor:
    """A float32 less than 0.00002 from `noise_of(bits)`, without float64.

    -log(1 - w) comes for small w from the first terms of its series; device logarithms err by 2^-22.
    """
    u = (bits.to(tl.float32) + 0.5) * _STEP
    w = ((8388607 - bits).to(tl.float32) + 0.5) * _STEP
    series = w * (1.0 + w * (1.0 / 2.0 + w * (1.0 / 3.0 + w * (1.0 / 4.0 + w * (1.0 / 5.0)))))
    return -(tl.log2(tl.where(w < 0.0625, series, -(tl.log2(u) * _LN2))) * _LN2)


@triton.jit
def _gumbel(
    parameters: tl.tensor, lines: tl.tensor, positions: tl.tensor, out: tl.tensor, vocab_size: int, BLOCK: tl.constexpr
) -> None:
    release_next()
    wait_for_previous()
    row = tl.program_id(1)
    ids = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    noise = noise_of(noise_bits(ids, tl.load(positions + row), parameters, tl.load(lines + row)))
    tl.store(out + row.to(tl.int64) * vocab_size + ids, noise, mask=ids < vocab_size)


def gumbel(parameters: torch.Tensor, lines: torch.Tensor, positions: torch.Tensor, out: torch.Tensor) -> None:
    """Noise of every token for rows of requests: float32 out [n, vocab], contiguous.

    `parameters` as in `SamplingTensors`; int32 lines [n] and absolute positions [n] of the tokens that are decided.
    """
    block = 1024
    grid = (triton.cdiv(out.shape[1], block), len(out))
    launch(_gumbel, grid, parameters, lines, positions, out, out.shape[1], BLOCK=block)


def gumbel_reference(parameters: torch.Tensor, lines: torch.Tensor, positions: torch.Tensor, out: torch.Tensor) -> None:
    """Twin of `gumbel`."""
    fields = parameters[lines.long()].long() & _LOW
    c0 = torch.arange(out.shape[1], device=out.device).expand(out.shape)
    c1 = (positions.long()[:, None] + torch.zeros_like(c0)) & _LOW
    c2 = fields[:, table.CHOICE, None] + torch.zeros_like(c0)
    k0, k1 = fields[:, table.SEED_LOW, None], fields[:, table.SEED_HIGH, None]
    bits = philox_reference((c0, c1, c2, torch.zeros_like(c0)), k0, k1)[0]
    u = ((bits >> 9).double() + 0.5) * 2.0**-23
    out.copy_(-torch.log(-torch.log(u)))


def philox_reference(
    counter: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], k0: torch.Tensor, k1: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Twin of `philox` on 32-bit words held in int64, whose products wrap."""
    c0, c1, c2, c3 = counter
    for _ in range(_ROUNDS.value):
        first, second = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0 = ((second >> 32) & _LOW) ^ c1 ^ k0
        c2 = ((first >> 32) & _LOW) ^ c3 ^ k1
        c1, c3 = second & _LOW, first & _LOW
        k0, k1 = (k0 + WEYL[0]) & _LOW, (k1 + WEYL[1]) & _LOW
    return c0, c1, c2, c3
