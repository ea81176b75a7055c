"""Linear layers of experts: of each pair of a row and an expert the product of the row and the expert's weight.

An output is the chain of `linear_stream`: the bits of a pair are those of a linear layer of the expert's weight with
the row alone, however pairs are grouped. With few pairs a program has one of them; with many it has a block of pairs of
one expert.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.experts.clamped_swiglu import SLOPE, clamped_swiglu_reference
from slipstream_kernels.ops.gpu.experts.fragment_experts import FragmentExperts, fragment_sums
from slipstream_kernels.ops.gpu.experts.group_rows import MOST_TOKENS, TOGETHER, WORDS, ExpertGroups, place_of
from slipstream_kernels.ops.gpu.experts.hopper_experts import hopper_experts
from slipstream_kernels.ops.gpu.experts.packed_experts import DEPTH, PackedExperts, packed_sums
from slipstream_kernels.ops.gpu.gate_up import separate_gate_up
from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.linear_epilogue import gate_and_up, gated_sums
from slipstream_kernels.ops.gpu.linear_stream import chained_sums
from slipstream_kernels.ops.gpu.linear_tile import Tile
from slipstream_kernels.ops.gpu.packed.fragments import ROWS
from slipstream_kernels.ops.gpu.packed.packed_linear import has_hopper_stream
from slipstream_kernels.ops.gpu.packed.packed_weight import UNIT, chunk_of
from slipstream_kernels.ops.gpu.packed.packed_weight import WORDS as FRAGMENT_WORDS
from slipstream_kernels.ops.gpu.rounding import rounded
from slipstream_kernels.ops.gpu.tuning import filled
from slipstream_kernels.ops.quantised_weight import PAIRED, implied_zero

ExpertMatrix = torch.Tensor | PackedExperts | FragmentExperts
"""Weights of all experts, in bfloat16 or packed."""

_SLOPE, _UNIT, _WORDS = tl.constexpr(SLOPE), tl.constexpr(UNIT), tl.constexpr(FRAGMENT_WORDS)
_ROOM, _SHARED_ROOM = 200 * 1024, 104 * 1024
"""Bytes of shared memory for the stages of a program, and of one of two on a multiprocessor."""


@triton.jit
def clamped_sums(sums: tl.tensor, LIMIT: tl.constexpr) -> Any:
    """As `gated_sums`, by the gate of `slipstream_kernels.ops.experts.clamped_swiglu`."""
    gate, up = gate_and_up(sums)
    gate = tl.where(gate > LIMIT, LIMIT, gate)
    up = tl.where(up > LIMIT, LIMIT, tl.where(up < -LIMIT, -LIMIT, up))
    gated = gate / (1.0 + tl.exp(gate * -_SLOPE)) * (up + 1.0)
    return tl.reshape(gated, (sums.shape[0] // 2, sums.shape[1]))


@triton.jit
def _expert_linear(
    x: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    ids: tl.tensor,
    order: tl.tensor,
    blocks: tl.tensor,
    bias: tl.tensor,
    factors: tl.tensor,
    scales: tl.tensor,
    zeros: tl.tensor,
    share: int,
    outputs: int,
    inputs: int,
    x_stride: int,
    out_stride: int,
    of_row: int,
    experts: int,
    groups: int,
    WEIGHT_ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    DEPTH: tl.constexpr,
    PRODUCTS: tl.constexpr,
    EVEN: tl.constexpr,
    GROUPED: tl.constexpr,
    BIAS: tl.constexpr,
    FACTORS: tl.constexpr,
    LIMIT: tl.constexpr,
    WORDS: tl.constexpr,
    TOGETHER: tl.constexpr,
    NUMBER: tl.constexpr,
    PER_BYTE: tl.constexpr,
    COLUMNS: tl.constexpr,
    GROUP: tl.constexpr,
    ZERO: tl.constexpr,
    ZEROS: tl.constexpr,
    PAIRED: tl.constexpr,
) -> None:
    """`share` outputs of one block of pairs, or of one pair where not GROUPED; `of_row` pairs have one row of x.

    Where NUMBER is not empty `weight` are codes: see `packed_experts`, and `fragment_experts` where COLUMNS, those of a
    chunk, are not 0.
    """
    release_next()
    block, tile = place_of(tl.program_id(0), tl.num_programs(0), tl.cdiv(outputs, share), TOGETHER)
    first = tile * share
    end = tl.minimum(first + share, outputs)
    lines = first * PRODUCTS + tl.arange(0, WEIGHT_ROWS)
    own = lines < end * PRODUCTS
    tokens = tl.arange(0, TOKENS)
    wait_for_previous()
    if GROUPED:
        expert = tl.load(blocks + block * WORDS)
        count = tl.load(blocks + block * WORDS + 2)
        pairs = tl.load(order + tl.load(blocks + block * WORDS + 1) + tokens, mask=tokens < count, other=0)
    else:
        found = tl.load(ids + block)
        expert = tl.minimum(found, experts - 1)
        count = (found < experts).to(tl.int32)
        pairs = block + tl.zeros_like(tokens)
    present = tokens < count
    x_at = x + (pairs // of_row).to(tl.int64)[:, None] * x_stride
    rows = expert.to(tl.int64) * outputs * PRODUCTS + lines
    depth = tl.where(count > 0, inputs, 0)  # a block without pairs reads nothing
    if NUMBER == "":
        rows_at = weight + rows * inputs
        sums = chained_sums(x_at, rows_at, present[:, None], own[:, None], depth, WEIGHT_ROWS, TOKENS, DEPTH, EVEN)
    elif COLUMNS > 0:
        units, chunks = outputs * PRODUCTS // _UNIT, tl.cdiv(inputs, COLUMNS)
        of_scales = expert.to(tl.int64) * groups * (units * _UNIT)
        sums = fragment_sums(
            x_at,
            weight + expert.to(tl.int64) * chunks * (units * _WORDS),
            scales + of_scales,
            zeros + of_scales,
            present[:, None],
            first * PRODUCTS // _UNIT,
            units,
            depth,
            chunks,
            groups,
            TOKENS,
            NUMBER,
            COLUMNS,
            GROUP,
            ZERO,
            ZEROS,
            PAIRED,
        )
    else:
        sums = packed_sums(
            x_at,
            weight + rows * (inputs // PER_BYTE),
            scales + rows * groups,
            zeros + rows * groups,
            present[:, None],
            own,
            depth,
            groups,
            WEIGHT_ROWS,
            TOKENS,
            NUMBER,
            GROUP,
            ZERO,
            ZEROS,
        )
    if FACTORS:
        sums = sums * tl.load(factors + pairs, mask=present, other=0.0)[None, :]
    if BIAS:
        added = tl.load(bias + expert.to(tl.int64) * outputs * PRODUCTS + lines, mask=own, other=0.0)
        sums += added.to(tl.float32)[:, None]
    if PRODUCTS == 2:
        sums = clamped_sums(sums, LIMIT) if LIMIT > 0 else gated_sums(sums)
    columns = first + tl.arange(0, sums.shape[0])
    out_at = out + pairs.to(tl.int64)[None, :] * out_stride + columns[:, None]
    tl.store(out_at, rounded(sums, out.dtype.element_ty), mask=(columns < end)[:, None] & present[None, :])


def expert_tile(outputs: int, tokens: int, *, gated: bool) -> Tile:
    """A tile for any shape; a block has at most `tokens` pairs.

    Blocks of most tokens read the cache less in larger tiles, of which only gated outputs leave registers enough.
    """
    products = 2 if gated else 1
    if tokens <= 32:
        return filled(Tile(min(64 // products, outputs), tokens, 128, 1), gated, _SHARED_ROOM)
    weight_rows = 256 if gated and tokens == MOST_TOKENS else 128
    return filled(Tile(min(weight_rows // products, outputs), tokens, 64, 1), gated, _ROOM)


def packed_tile(outputs: int, tokens: int, stored: _Stored, *, gated: bool) -> Tile:
    """The same for packed weights, of which few columns are decoded at a time."""
    products = 2 if gated else 1
    if stored.columns:
        return Tile(ROWS // products, tokens, DEPTH, 1)
    weight_rows = 64 if tokens <= 64 else 128
    stages = 1 if stored.number in PAIRED else 3
    return Tile(min(weight_rows // products, outputs), tokens, DEPTH, stages, 4 if tokens <= 64 else 8)


def expert_linear(
    x: torch.Tensor,
    weight: ExpertMatrix,
    out: torch.Tensor,
    ids: torch.Tensor,
    groups: ExpertGroups | None = None,
    *,
    gated: bool = False,
    bias: torch.Tensor | None = None,
    limit: float = 0.0,
    factors: torch.Tensor | None = None,
    tile: Tile | None = None,
) -> None:
    """out[p] = weight[ids[p]] x[p // n] + bias[ids[p]] of each pair p, of which n have one row of x; rounded once.

    bfloat16 x [rows, K], weight [experts, N, K], or packed; out [pairs, N], bfloat16 or float32; int32 ids [rows,
    chosen], contiguous. `groups`: of `group_rows` of the same ids; None: each pair is computed alone. Where `gated`,
    weight is [experts, 2 N, K] in the order of gate_up.py, and out is silu(gate) * up of the float32 sums; with a
    `limit` the gate is that of `slipstream_kernels.ops.experts.clamped_swiglu`. bias: bfloat16 [experts, N or 2 N], in
    the order of the weight, added to the sums. factors: float32 [rows, chosen], contiguous, of what a pair reads: sums
    are multiplied by them before all else. Nothing is written of pairs whose id is no expert's.
    """
    pairs, outputs, inputs = ids.numel(), out.shape[1], x.shape[1]
    assert x.stride(1) == out.stride(1) == 1
    assert tuple(weight.shape[1:]) == (outputs * (2 if gated else 1), inputs)
    assert len(out) == pairs
    assert bias is None or bias.shape == weight.shape[:2]
    assert factors is None or (factors.numel() == pairs and factors.is_contiguous())
    assert pairs % len(x) == inputs % 16 == x.stride(0) % 8 == 0
    if isinstance(weight, FragmentExperts) and has_hopper_stream():
        assert tile is None
        hopper_experts(x, weight, out, ids, groups, is_gated=gated, bias=bias, limit=limit, factors=factors)
        return
    stored = _stored(weight)
    assert stored.codes.is_contiguous()
    tokens = 16 if groups is None else groups.tokens
    if tile is None and stored.number:
        tile = packed_tile(outputs, tokens, stored, gated=gated)
    tile = tile or expert_tile(outputs, tokens, gated=gated)
    assert groups is None or tile.tokens == groups.tokens
    assert not stored.columns or tile.weight_rows(gated) == ROWS
    blocks = pairs if groups is None else len(groups.blocks)
    launch(
        _expert_linear,
        (blocks * triton.cdiv(outputs, tile.outputs),),
        x,
        stored.codes,
        out,
        ids,
        ids if groups is None else groups.order,
        ids if groups is None else groups.blocks,
        stored.codes if bias is None else bias,
        stored.codes if factors is None else factors,
        stored.scales,
        stored.codes if stored.zeros is None else stored.zeros,
        tile.outputs,
        outputs,
        inputs,
        x.stride(0),
        out.stride(0),
        pairs // len(x),
        len(weight),
        stored.groups,
        warps=tile.warps,
        stages=tile.stages,
        WEIGHT_ROWS=tile.weight_rows(gated),
        TOKENS=tile.tokens,
        DEPTH=tile.depth,
        PRODUCTS=2 if gated else 1,
        EVEN=inputs % tile.depth == 0,
        GROUPED=groups is not None,
        BIAS=bias is not None,
        FACTORS=factors is not None,
        LIMIT=limit,
        WORDS=WORDS,
        TOGETHER=TOGETHER,
        NUMBER=stored.number,
        PER_BYTE=2 if stored.number in PAIRED else 1,
        COLUMNS=stored.columns,
        GROUP=stored.group,
        ZERO=stored.zero,
        ZEROS=stored.zeros is not None,
        PAIRED=stored.paired,
    )


@dataclass(frozen=True, slots=True)
class _Stored:
    """What a kernel is told of a weight. number: empty of bfloat16; groups: of a row; columns: of fragments' chunks."""

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None = None
    groups: int = 0
    number: str = ""
    group: int = 0
    zero: float = 0.0
    columns: int = 0
    paired: bool = False


def _stored(weight: ExpertMatrix) -> _Stored:
    if isinstance(weight, PackedExperts):
        of_groups = weight.scales.shape[2], weight.number, weight.group
        return _Stored(weight.codes, weight.scales, weight.zeros, *of_groups, float(implied_zero(weight.number)))
    if isinstance(weight, FragmentExperts):
        form = weight.form
        of_groups = form.groups, form.number, form.group
        zero, columns = float(implied_zero(form.number)), chunk_of(form.number)
        return _Stored(weight.codes, weight.scales, weight.zeros, *of_groups, zero, columns, weight.paired)
    return _Stored(weight, weight)


def expert_linear_reference(
    x: torch.Tensor,
    weight: ExpertMatrix,
    out: torch.Tensor,
    ids: torch.Tensor,
    groups: ExpertGroups | None = None,  # noqa: ARG001  # the twin's signature
    *,
    gated: bool = False,
    bias: torch.Tensor | None = None,
    limit: float = 0.0,
    factors: torch.Tensor | None = None,
    tile: Tile | None = None,  # noqa: ARG001  # the twin's signature
) -> None:
    """The same in torch, with float64 sums."""
    experts = ids.flatten()
    rows = x.repeat_interleave(len(experts) // len(x), 0)
    for expert in experts[experts < len(weight)].unique():
        pairs = experts == expert
        whole = weight[int(expert)] if isinstance(weight, torch.Tensor) else weight.decoded(int(expert))
        sums = rows[pairs].double() @ whole.double().T
        if factors is not None:
            sums *= factors.flatten()[pairs].double()[:, None]
        if bias is not None:
            sums += bias[int(expert)].double()
        if gated:
            gate_up = separate_gate_up(sums, dim=1)
            gate, up = gate_up.chunk(2, dim=1)
            sums = clamped_swiglu_reference(gate_up, limit) if limit else torch.nn.functional.silu(gate) * up
        out[pairs] = sums.to(out.dtype)
