"""Sums of products of tokens with packed weights, which are decoded in registers meanwhile: for few tokens.

Codes, scales and tokens are copied to shared memory some steps ahead. Each thread decodes the very elements that the
matrix instruction wants of it, so that nothing passes between threads, and the warps of a program ask for all products
of PART columns at once, in the order of columns: one chain along K, as everywhere. While these are under way the next
are decoded, to other registers: a product's operands are not written before it is waited for.
"""

from __future__ import annotations

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_wait

from slipstream_kernels.ops.gpu.packed.hopper_decode import decoded_operand


@gluon.constexpr_function
def sums_layout(tokens: int, warps: int) -> Any:
    """Of the sums of a program."""
    return gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, tokens, 16])


@gluon.constexpr_function
def x_layout(columns: int, warps: int) -> Any:
    """Of a program's tokens and so many columns of a step, a power of two, as they are copied: each by one thread."""
    across = min(32, columns // 8)
    return gl.BlockedLayout([1, 8], [32 // across, across], [warps, 1], [1, 0])


@gluon.jit
def _spread(groups: gl.tensor, count: gl.constexpr, layout: gl.constexpr) -> gl.tensor:
    """A value for each of `count` words, of values that four words share."""
    each = gl.reshape(groups[:, None].broadcast_to(count // 4, 4), (count,))
    return gl.convert_layout(each, layout, assert_trivial=True)


@gluon.jit
def unit_of(
    warp: gl.tensor, half: gl.tensor, warps: gl.constexpr, halves: gl.constexpr, products: gl.constexpr
) -> gl.tensor:
    """Which of a program's units a warp has in a half of its lines: gate and up of an output lie in one thread."""
    if products == 2:
        return warp * halves + half
    else:  # noqa: RET505  # the other is not compiled
        return half * warps + warp


@gluon.jit
def _points(zeros: gl.tensor, NUMBER: gl.constexpr) -> gl.tensor:
    """Zero points, float32, as `decoded_operand` has them."""
    if NUMBER == "int8":
        return zeros + 8388608.0
    else:  # noqa: RET505  # the other is not compiled
        # 128 to 144, in the upper half of float32's bits
        bits = (zeros + 128.0).to(gl.int32, bitcast=True)
        return bits | ((bits >> 16) & 0xFFFF)


@gluon.jit
def _copy_weights(
    step: gl.tensor,
    stage: gl.tensor,
    codes_at: gl.tensor,
    groups_at: gl.tensor,
    scales: gl.tensor,
    zeros: gl.tensor,
    own: gl.tensor,
    own_g: gl.tensor,
    chunk: gl.tensor,
    group: gl.tensor,
    codes_room: gl.shared_memory_descriptor,
    scales_room: gl.shared_memory_descriptor,
    zeros_room: gl.shared_memory_descriptor,
    chunks: gl.tensor,
    groups: gl.tensor,
    lines: gl.tensor,
    step_chunks: gl.constexpr,
    step_groups: gl.constexpr,
    ZEROS: gl.constexpr,
) -> None:
    """Begin to copy a step of the weight to a stage of the rooms; beyond the weight's last column is zero."""
    inside = own & (step * step_chunks + chunk < chunks)
    async_copy.async_copy_global_to_shared(codes_room.index(stage), codes_at + step * (step_chunks * 128), mask=inside)
    if step_groups > 0:
        known = own_g & (step * step_groups + group < groups)
        at = groups_at + step * step_groups * lines
        async_copy.async_copy_global_to_shared(scales_room.index(stage), scales + at, mask=known)
        if ZEROS:
            async_copy.async_copy_global_to_shared(zeros_room.index(stage), zeros + at, mask=known)


@gluon.jit
def _values(
    room: gl.shared_memory_descriptor,
    stage: gl.tensor,
    part: gl.constexpr,
    count: gl.constexpr,
    layout: gl.constexpr,
) -> gl.tensor:
    """`count` values of a part of a stage."""
    return room.index(stage).slice(part * count, count).load(layout)


@gluon.jit
def _stage_behind(stage: gl.tensor, steps: gl.constexpr, STAGES: gl.constexpr) -> gl.tensor:
    """The stage that is so many steps behind another. Of a power of two that takes one instruction."""
    if STAGES & (STAGES - 1) == 0:
        return (stage + steps) & (STAGES - 1)
    else:  # noqa: RET505  # the other is not compiled
        return gl.where(stage >= STAGES - steps, stage - (STAGES - steps), stage + steps)


@gluon.jit
def streamed_sums(
    x: gl.tensor,
    offsets: gl.tensor,
    present: gl.tensor,
    codes: gl.tensor,
    scales: gl.tensor,
    zeros: gl.tensor,
    first_unit: gl.tensor,
    last_unit: gl.tensor,
    inputs: gl.tensor,
    units: gl.tensor,
    chunks: gl.tensor,
    groups: gl.tensor,
    TOKENS: gl.constexpr,
    STAGES: gl.constexpr,
    PARTS: gl.constexpr,
    PART_COLUMNS: gl.constexpr,
    WARPS: gl.constexpr,
    HALVES: gl.constexpr,
    PRODUCTS: gl.constexpr,
    CHUNK_COLUMNS: gl.constexpr,
    NUMBER: gl.constexpr,
    PAIRED: gl.constexpr,
    GROUP: gl.constexpr,
    ZERO: gl.constexpr,
    ZEROS: gl.constexpr,
) -> gl.tensor:
    """float32 [16 WARPS, TOKENS], in `sums_layout`: units from `first_unit` to before `last_unit` times tokens.

    Lines are in the order of `unit_of`. x: of the first token; offsets, present: int32 and bool [TOKENS, 1] in
    `x_layout`, where each token begins, in elements, and whether it is there. A step has PARTS parts of PART_COLUMNS.
    Weights are copied before the kernel in front of this one has ended, tokens then.
    """
    part_chunks: gl.constexpr = PART_COLUMNS // CHUNK_COLUMNS
    half: gl.constexpr = part_chunks * WARPS * 128
    count: gl.constexpr = HALVES * half
    step_columns: gl.constexpr = PARTS * PART_COLUMNS
    step_groups: gl.constexpr = step_columns // GROUP if GROUP > 0 else 0
    words_layout: gl.constexpr = gl.BlockedLayout([4], [32], [WARPS], [0])
    groups_layout: gl.constexpr = gl.SliceLayout(1, gl.BlockedLayout([1, 4], [32, 1], [WARPS, 1], [1, 0]))
    sums_in: gl.constexpr = sums_layout(TOKENS, WARPS)
    operand: gl.constexpr = gl.DotOperandLayout(0, sums_in, 2)
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])

    # Parts, halves, chunks, warps, lanes, words, the latter four to a thread.
    n = gl.arange(0, PARTS * count, words_layout)
    chunk = n // count * part_chunks + n // (128 * WARPS) % part_chunks
    unit = first_unit + unit_of(n // 128 % WARPS, n // half % HALVES, WARPS, HALVES, PRODUCTS)
    own = unit < last_unit
    codes_at = codes + ((unit * chunks + chunk) * 128 + n % 128)
    copies: gl.constexpr = PARTS if GROUP > 0 else 1
    g = gl.arange(0, copies * (count // 4), groups_layout)
    unit_g = first_unit + unit_of(g // 32 % WARPS, g // (half // 4) % HALVES, WARPS, HALVES, PRODUCTS)
    own_g = unit_g < last_unit
    group = g * 0
    if GROUP > 0:
        group = (g // (count // 4) * part_chunks + g // (32 * WARPS) % part_chunks) * CHUNK_COLUMNS // GROUP
    groups_at = unit_g * 8 + g % 32 // 4 + group * (units * 8)
    column = gl.arange(0, step_columns, gl.SliceLayout(0, x_layout(step_columns, WARPS)))
    # Offsets fit 32 bits, which halves the registers they take.
    x_at = x + (offsets + column[None, :])

    shared: gl.constexpr = STAGES if GROUP > 0 else 1
    codes_room = gl.allocate_shared_memory(gl.int32, [STAGES, PARTS * count], flat)
    scales_room = gl.allocate_shared_memory(scales.dtype.element_ty, [shared, copies * (count // 4)], flat)
    zeros_room = gl.allocate_shared_memory(gl.float32, [shared if ZEROS else 1, copies * (count // 4)], flat)
    x_room = gl.allocate_shared_memory(gl.bfloat16, [STAGES, TOKENS, step_columns], gl.NVMMASharedLayout(128, 16, 2))
    scale = gl.full([count // 4], 0, scales.dtype.element_ty, groups_layout)
    zero = gl.full([count // 4], ZERO, gl.float32, groups_layout)
    if GROUP == 0:
        scale = gl.load(scales + groups_at, mask=own_g, other=0)
        if ZEROS:
            zero = gl.load(zeros + groups_at, mask=own_g, other=0)

    # Weights are there before the kernel in front of this one has ended.
    for early in gl.static_range(STAGES - 2):
        _copy_weights(
            early, early, codes_at, groups_at, scales, zeros, own, own_g, chunk, group, codes_room, scales_room,
            zeros_room, chunks, groups, units * 8, PARTS * part_chunks, step_groups, ZEROS,
        )  # fmt: skip
    gdc_wait()
    for early in gl.static_range(STAGES - 2):
        inside = present & (early * step_columns + column < inputs)[None, :]
        async_copy.async_copy_global_to_shared(x_room.index(early), x_at + early * step_columns, mask=inside)
        async_copy.commit_group()

    sums = gl.zeros([16 * WARPS, TOKENS], gl.float32, sums_in)
    before = gl.zeros([16 * WARPS, PART_COLUMNS], gl.bfloat16, operand)
    stage = inputs * 0
    # Two parts in a round, so that operands under way and those that are decoded have registers of their own.
    # One round there always is: sums of a loop that may be left out are set on the way around it, in registers that
    # the compiler then takes for a product's, and it has every product wait for the one before.
    for start in range(0, gl.maximum(gl.cdiv(inputs, step_columns), 1), 3 - PARTS):
        for turn in gl.static_range(3 - PARTS):
            step = start + turn
            async_copy.wait_group(STAGES - 3)  # and a barrier, which the compiler adds
            words = _values(codes_room, stage, 0, count, words_layout)
            more = words if PARTS == 1 else _values(codes_room, stage, PARTS - 1, count, words_layout)
            more_scale, more_zero = scale, zero
            if GROUP > 0:
                scale = _values(scales_room, stage, 0, count // 4, groups_layout)
                more_scale = scale if PARTS == 1 else _values(scales_room, stage, 1, count // 4, groups_layout)
                if ZEROS:
                    zero = _values(zeros_room, stage, 0, count // 4, groups_layout)
                    more_zero = zero if PARTS == 1 else _values(zeros_room, stage, 1, count // 4, groups_layout)
            # Products of the step two before this one are done in all warps: its stage is free.
            ahead = step + STAGES - 2
            free = _stage_behind(stage, STAGES - 2, STAGES)
            _copy_weights(
                ahead, free, codes_at, groups_at, scales, zeros, own, own_g, chunk, group, codes_room, scales_room,
                zeros_room, chunks, groups, units * 8, PARTS * part_chunks, step_groups, ZEROS,
            )  # fmt: skip
            begin = ahead * step_columns
            inside = present & (begin + column < inputs)[None, :]
            async_copy.async_copy_global_to_shared(x_room.index(free), x_at + begin, mask=inside)
            async_copy.commit_group()
            for part in gl.static_range(PARTS):
                factors = _spread(scale if part == 0 else more_scale, count, words_layout)
                points = _spread(_points(zero if part == 0 else more_zero, NUMBER), count, words_layout)
                values = decoded_operand(
                    words if part == 0 else more, factors, points, NUMBER, PAIRED, WARPS, HALVES, part_chunks, operand
                )  # fmt: skip
                tile = x_room.index(stage).slice(part * PART_COLUMNS, PART_COLUMNS, 1).permute((1, 0))
                sums = warpgroup_mma(values, tile, sums, is_async=True)
                sums, before = warpgroup_mma_wait(1, deps=[sums, before])
                before = values
            stage = _stage_behind(stage, 1, STAGES)
    return warpgroup_mma_wait(0, deps=[sums])
