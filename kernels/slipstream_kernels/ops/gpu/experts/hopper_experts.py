"""Linear layers of experts that decode their weights in registers while products are under way."""

from __future__ import annotations

from typing import Any

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from slipstream_kernels.ops.experts.clamped_swiglu import SLOPE
from slipstream_kernels.ops.gpu.experts.fragment_experts import DEPTH, FragmentExperts
from slipstream_kernels.ops.gpu.experts.group_rows import TOGETHER, ExpertGroups, place_of
from slipstream_kernels.ops.gpu.experts.group_rows import WORDS as BLOCK_WORDS
from slipstream_kernels.ops.gpu.launch import launch
from slipstream_kernels.ops.gpu.packed.hopper_epilogue import gate_and_up, gated_sums
from slipstream_kernels.ops.gpu.packed.hopper_sums import streamed_sums, sums_layout, x_layout
from slipstream_kernels.ops.gpu.packed.packed_weight import UNIT, WORDS, PackedForm, chunk_of
from slipstream_kernels.ops.quantised_weight import PAIRED, implied_zero

_HALVES = 2
"""All rows of the matrix instructions are wanted."""
_ROOM = {64: 110 * 1024, 128: 216 * 1024}
"""Bytes of shared memory for the stages of a program, by its tokens: of one of two on a multiprocessor, or alone."""
_ROOM_OF_THREE, _ROOM_OF_FOUR = 74 * 1024, 55 * 1024
"""The same at fewer tokens. With pairs of many rows decoding binds, and warps are worth more than stages."""
_SLOPE = gl.constexpr(SLOPE)


@gluon.jit
def _clamped(sums: gl.tensor, TOKENS: gl.constexpr, LIMIT: gl.constexpr) -> gl.tensor:
    """As `expert_linear.clamped_sums`."""
    gate, up = gate_and_up(sums, TOKENS, 2, None)
    gate = gl.where(gate > LIMIT, LIMIT, gate)
    up = gl.where(up > LIMIT, LIMIT, gl.where(up < -LIMIT, -LIMIT, up))
    return gl.reshape(gate / (1.0 + gl.exp(gate * -_SLOPE)) * (up + 1.0), (sums.shape[0] // 2, TOKENS))


@gluon.jit
def _pairs(
    order: gl.tensor, block: gl.tensor, start: gl.tensor, count: gl.tensor, token: gl.tensor, GROUPED: gl.constexpr
) -> gl.tensor:
    """int32, the pair of each token of a block."""
    if GROUPED:
        return gl.load(order + start + token, mask=token < count, other=0)
    else:  # noqa: RET505  # the other is not compiled
        return block + token * 0


@gluon.jit
def _hopper_experts(
    x: gl.tensor,
    codes: gl.tensor,
    scales: gl.tensor,
    zeros: gl.tensor,
    out: gl.tensor,
    ids: gl.tensor,
    order: gl.tensor,
    blocks: gl.tensor,
    bias: gl.tensor,
    factors: gl.tensor,
    outputs: int,
    inputs: int,
    chunks: int,
    groups: int,
    x_stride: int,
    out_stride: int,
    of_row: int,
    experts: int,
    TOKENS: gl.constexpr,
    STAGES: gl.constexpr,
    WARPS: gl.constexpr,
    PRODUCTS: gl.constexpr,
    GROUPED: gl.constexpr,
    LIMIT: gl.constexpr,
    DEPTH: gl.constexpr,
    CHUNK_COLUMNS: gl.constexpr,
    NUMBER: gl.constexpr,
    GROUP: gl.constexpr,
    ZERO: gl.constexpr,
    ZEROS: gl.constexpr,
    PAIRED: gl.constexpr,
    UNIT: gl.constexpr,
    WORDS: gl.constexpr,
    BLOCK_WORDS: gl.constexpr,
    TOGETHER: gl.constexpr,
    HALVES: gl.constexpr,
) -> None:
    """16 WARPS rows of an expert's weight for one block of pairs; or for one pair, where not GROUPED."""
    lines: gl.constexpr = 16 * WARPS
    share: gl.constexpr = lines // PRODUCTS
    sums_in: gl.constexpr = sums_layout(TOKENS, WARPS)
    gdc_launch_dependents()
    block, tile = place_of(gl.program_id(0), gl.num_programs(0), gl.cdiv(outputs, share), TOGETHER)
    first = tile * share
    units = outputs * PRODUCTS // UNIT
    first_unit = first * PRODUCTS // UNIT
    gdc_wait()
    if GROUPED:
        expert = gl.load(blocks + block * BLOCK_WORDS)
        start = gl.load(blocks + block * BLOCK_WORDS + 1)
        count = gl.load(blocks + block * BLOCK_WORDS + 2)
    else:
        found = gl.load(ids + block)
        expert = gl.minimum(found, experts - 1)
        start = block
        count = (found < experts).to(gl.int32)
    if count == 0:
        return
    last_unit = gl.minimum(first_unit + lines // UNIT, units)
    token = gl.arange(0, TOKENS, gl.SliceLayout(1, x_layout(DEPTH, WARPS)))
    rows = _pairs(order, block, start, count, token, GROUPED) // of_row
    of_scales = expert.to(gl.int64) * groups * (units * UNIT)
    own_zeros = zeros
    if ZEROS:
        own_zeros = zeros + of_scales
    sums = streamed_sums(
        x, (rows * x_stride)[:, None], (token < count)[:, None], codes + expert.to(gl.int64) * chunks * (units * WORDS),
        scales + of_scales, own_zeros, first_unit, last_unit, inputs, units, chunks, groups, TOKENS, STAGES, 1, DEPTH,
        WARPS, HALVES, PRODUCTS, CHUNK_COLUMNS, NUMBER, PAIRED, GROUP, ZERO, ZEROS,
    )  # fmt: skip
    column = gl.arange(0, TOKENS, gl.SliceLayout(0, sums_in))
    if factors is not None:
        pair = _pairs(order, block, start, count, column, GROUPED)
        sums = sums * gl.load(factors + pair, mask=column < count, other=0.0)[None, :]
    if bias is not None:
        place = gl.arange(0, lines, gl.SliceLayout(1, sums_in))
        line = place if PRODUCTS == 2 else (place // 8 % 2 * WARPS + place // 16) * 8 + place % 8
        of_lines = bias + expert.to(gl.int64) * (units * UNIT) + first_unit * UNIT
        added = gl.load(of_lines + line, mask=first_unit * UNIT + line < units * UNIT, other=0.0)
        sums = sums + added.to(gl.float32)[:, None]
    if PRODUCTS == 2:
        sums = _clamped(sums, TOKENS, LIMIT) if LIMIT > 0 else gated_sums(sums, TOKENS, HALVES, None)
        place = gl.arange(0, share)
    else:
        at = gl.arange(0, share)
        place = (at // 8 % 2 * WARPS + at // 16) * 8 + at % 8
    column = gl.arange(0, TOKENS)
    pair = _pairs(order, block, start, count, column, GROUPED)
    out_at = out + pair.to(gl.int64)[None, :] * out_stride + (first + place)[:, None]
    gl.store(out_at, sums.to(out.dtype.element_ty), mask=(first + place < outputs)[:, None] & (column < count)[None, :])


def hopper_experts(
    x: torch.Tensor,
    weight: FragmentExperts,
    out: torch.Tensor,
    ids: torch.Tensor,
    groups: ExpertGroups | None,
    *,
    is_gated: bool,
    bias: torch.Tensor | None,
    limit: float,
    factors: torch.Tensor | None,
) -> None:
    """`expert_linear` of such a weight. Elements of x are numbered by 32 bits; rows begin at multiples of 16."""
    assert x.stride(0) * len(x) < 2**31
    assert x.stride(0) % 16 == 0
    products = 2 if is_gated else 1
    outputs, pairs = out.shape[1], ids.numel()
    constants, warps = constants_of(
        16 if groups is None else groups.tokens, weight.form, products=products, grouped=groups is not None, limit=limit
    )
    blocks = pairs if groups is None else len(groups.blocks)
    launch(
        _hopper_experts,
        (blocks * triton.cdiv(outputs, 16 * warps // products),),
        x,
        weight.codes,
        weight.scales,
        weight.zeros,
        out,
        ids,
        ids if groups is None else groups.order,
        ids if groups is None else groups.blocks,
        bias,
        factors,
        outputs,
        weight.form.inputs,
        weight.form.chunks,
        weight.form.groups,
        x.stride(0),
        out.stride(0),
        pairs // len(x),
        len(weight),
        warps=warps,
        PAIRED=weight.paired,
        **constants,
    )


def constants_of(
    tokens: int, form: PackedForm, *, products: int, grouped: bool, limit: float
) -> tuple[dict[str, Any], int]:
    """Of the kernel for blocks of at most so many pairs, a power of two from 16 to 128; and its warps."""
    warps, chunk = 4 if tokens <= 64 else 8, chunk_of(form.number)
    words = _HALVES * warps * (DEPTH // chunk) * WORDS
    of_groups = words // 4 * (1 + form.zeros) if form.group else 0
    stage = 4 * (words + of_groups) + 2 * tokens * DEPTH
    room = _ROOM.get(tokens, _ROOM_OF_FOUR if grouped and form.number in PAIRED else _ROOM_OF_THREE)
    constants = {
        "TOKENS": tokens, "STAGES": max(3, min(8, room // stage)), "WARPS": warps, "PRODUCTS": products,
        "GROUPED": grouped, "LIMIT": limit, "DEPTH": DEPTH, "CHUNK_COLUMNS": chunk, "NUMBER": form.number,
        "GROUP": form.group, "ZERO": float(implied_zero(form.number)), "ZEROS": form.zeros, "UNIT": UNIT,
        "WORDS": WORDS, "BLOCK_WORDS": BLOCK_WORDS, "TOGETHER": TOGETHER, "HALVES": _HALVES,
    }  # fmt: skip
    return constants, warps
