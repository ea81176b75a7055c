"""Rotary position embedding (arXiv 2104.09864) in the half-split layout, and the write into the paged KV store."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.fp8_rows import codes_of, magnitude_bits, own_exponent, pointers_of, power
from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.rounding import rounded
from slipstream_kernels.ops.kv_cache.kv_codes import KVRows, write_rows

_GROUP = 8
"""Heads of a program."""


@triton.jit
def _rotary_write(
    qkv: tl.tensor,
    positions: tl.tensor,
    write_slots: tl.tensor,
    table: tl.tensor,
    q_norm: tl.tensor,
    k_norm: tl.tensor,
    q_out: tl.tensor,
    keys: tl.tensor,
    key_scales: tl.tensor | None,
    values: tl.tensor,
    value_scales: tl.tensor | None,
    head_stride: int,
    eps: float,
    key_scale: float,
    key_reciprocal: float,
    value_scale: float,
    value_reciprocal: float,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    GROUP: tl.constexpr,
    NORMALISED: tl.constexpr,
    FIXED: tl.constexpr,
) -> None:
    """GROUP heads of one row, counted through queries, keys and values; `first` and `second` are their halves.

    Angles and weights are addressed by the whole tile: every load then has the tile's layout and none is converted.
    """
    release_next()
    row = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * GROUP + tl.arange(0, GROUP)[:, None]
    columns = tl.broadcast_to(tl.arange(0, HALF)[None, :], (GROUP, HALF))
    source = qkv + (row * (HEADS + 2 * KV_HEADS) + heads) * 2 * HALF + columns
    present = heads < HEADS + 2 * KV_HEADS
    angles = table + tl.load(positions + row).to(tl.int64) * 2 * HALF + columns
    cosines = tl.load(angles)
    sines = tl.load(angles + HALF)
    slot = tl.load(write_slots + row).to(tl.int64)
    wait_for_previous()
    first = tl.load(source, mask=present, other=0.0).to(tl.float32)
    second = tl.load(source + HALF, mask=present, other=0.0).to(tl.float32)

    is_query = heads < HEADS
    is_value = heads >= HEADS + KV_HEADS
    a = first
    b = second
    if NORMALISED:
        scale = tl.rsqrt(tl.sum(first * first + second * second, axis=1, keep_dims=True) / (2 * HALF) + eps)
        first_gain = tl.where(is_query, tl.load(q_norm + columns), tl.load(k_norm + columns)).to(tl.float32)
        second_gain = tl.where(is_query, tl.load(q_norm + HALF + columns), tl.load(k_norm + HALF + columns))
        a = rounded(first * scale * first_gain, tl.bfloat16).to(tl.float32)
        b = rounded(second * scale * second_gain.to(tl.float32), tl.bfloat16).to(tl.float32)
    first = rounded(tl.where(is_value, first, a * cosines - b * sines), tl.bfloat16)
    second = rounded(tl.where(is_value, second, b * cosines + a * sines), tl.bfloat16)

    target = q_out + (row * HEADS + heads) * 2 * HALF + columns
    tl.store(target, first, mask=is_query)
    tl.store(target + HALF, second, mask=is_query)
    is_key = (heads >= HEADS) & (heads < HEADS + KV_HEADS) & (slot >= 0)
    is_value = is_value & present & (slot >= 0)
    if key_scales is not None:
        a = first.to(tl.float32)
        b = second.to(tl.float32)
        if FIXED:
            scale = tl.where(is_value, value_scale, key_scale)
            reciprocal = tl.where(is_value, value_reciprocal, key_reciprocal)
        else:
            exponent = own_exponent(tl.max(tl.maximum(magnitude_bits(a), magnitude_bits(b)), axis=1, keep_dims=True))
            scale = power(exponent)
            reciprocal = power(254 - exponent)
        first = codes_of(a, reciprocal)
        second = codes_of(b, reciprocal)
        slots = head_stride // (2 * HALF)
        tl.store(key_scales + (heads - HEADS).to(tl.int64) * slots + slot, scale, mask=is_key)
        tl.store(value_scales + (heads - HEADS - KV_HEADS).to(tl.int64) * slots + slot, scale, mask=is_value)
    target = keys + (heads - HEADS).to(tl.int64) * head_stride + slot * 2 * HALF + columns
    tl.store(target, first, mask=is_key)
    tl.store(target + HALF, second, mask=is_key)
    target = values + (heads - HEADS - KV_HEADS).to(tl.int64) * head_stride + slot * 2 * HALF + columns
    tl.store(target, first, mask=is_value)
    tl.store(target + HALF, second, mask=is_value)


def rotary_write(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    write_slots: torch.Tensor,
    table: torch.Tensor,
    q_out: torch.Tensor,
    keys: KVRows,
    values: KVRows,
    *,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
) -> None:
    """Rotate queries and keys of every row; write keys and values to the row's slot.

    Inputs: bfloat16 qkv [rows, (heads + 2 kv_heads) * head_dim], queries, keys, values one after the other; int32
    positions and write_slots [rows], a slot of -1 being padding that writes no keys and values; float32 table
    [positions, head_dim] of `slipstream_kernels.ops.rope.Rope.table`; bfloat16 q_norm, k_norm [head_dim], both or
    neither, the weights of an RMSNorm of each head before rotation. Outputs: bfloat16 q_out [rows, heads, head_dim],
    keys and values [kv_heads, slots, head_dim], which are one layer's and contiguous, or as codes of what is rounded to
    bfloat16 with their scales. No kernel of the same pass writes
    inputs other than qkv: they are read while those may still run.

    Arithmetic is float32. A norm's result is rounded to bfloat16 as every norm's is, a rotation's once after its sum.
    """
    if (q_norm is None) != (k_norm is None):
        raise ValueError("q_norm and k_norm are given both or neither")
    heads, head_dim = q_out.shape[1:]
    kv_heads = keys.shape[0]
    k, v = pointers_of(keys), pointers_of(values)
    launch(
        _rotary_write,
        (len(qkv), triton.cdiv(heads + 2 * kv_heads, _GROUP)),
        qkv,
        positions,
        write_slots,
        table,
        table if q_norm is None else q_norm,
        table if k_norm is None else k_norm,
        q_out,
        k.rows,
        k.scales,
        v.rows,
        v.scales,
        keys.stride(0),
        eps,
        k.fixed,
        k.reciprocal,
        v.fixed,
        v.reciprocal,
        warps=_GROUP * head_dim // 512,
        HEADS=heads,
        KV_HEADS=kv_heads,
        HALF=head_dim // 2,
        GROUP=_GROUP,
        NORMALISED=q_norm is not None,
        FIXED=k.fixed > 0,
    )


def rotary_write_reference(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    write_slots: torch.Tensor,
    table: torch.Tensor,
    q_out: torch.Tensor,
    keys: KVRows,
    values: KVRows,
    *,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
) -> None:
    """The same in torch."""
    heads, head_dim = q_out.shape[1:]
    kv_heads = keys.shape[0]
    q, k, v = qkv.unflatten(1, (-1, head_dim)).split([heads, kv_heads, kv_heads], dim=1)
    if q_norm is not None and k_norm is not None:
        q, k = _normalised(q, q_norm, eps), _normalised(k, k_norm, eps)
    angles = table[positions.long()].unsqueeze(1)
    q_out.copy_(_rotated(q, angles))
    written = write_slots >= 0
    slots = write_slots[written].long()
    write_rows(keys, slots, _rotated(k, angles)[written].transpose(0, 1))
    write_rows(values, slots, v[written].transpose(0, 1))


def _normalised(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight.float()).to(x.dtype)


def _rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    cosines, sines = angles.chunk(2, dim=-1)
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat([a * cosines - b * sines, b * cosines + a * sines], dim=-1).to(x.dtype)
