"""What LoRA adapters add to a matrix's output on the CPU: two phases, run by a team as those of `forward`."""

from __future__ import annotations

from typing import Any

import numpy as np

from slipstream_kernels.jit.compiler import kernel
from slipstream_kernels.jit.intrinsics import pointer_i32, record_at
from slipstream_kernels.jit.threads import claim, complete, finish
from slipstream_kernels.ops.linear import BLOCK
from slipstream_kernels.ops.lora.add_lora import expand_block, shrink_block

MATRICES = ("qkv", "o", "gate_up", "down")
"""What adapters add to, in the order of their records."""
QKV, O, GATE_UP, DOWN = range(len(MATRICES))
LORA = np.dtype([(name, np.int64) for name in ("a", "b", "scales", "rank")])
"""Addresses of the arrays of a `PackedLora`, and its rank; 0: nothing is added."""
ADDRESSES = ("loras", "shrunk", "shrunk_stride", "spans", "num_spans")
"""Addresses of `LORA` records [slots, layers, MATRICES], of float32 rows between an adapter's two matrices, which lie
shrunk_stride apart, and of int32 spans [num_spans, 3] of rows that have an adapter: first row, rows, slot."""

ADAPTER_PHASES = 2

_lora_at = record_at(LORA)
_LORA_BYTES = LORA.itemsize


@kernel
def _record(a: Any, layer: int, place: int, slot: int) -> int:
    return int(a.loras + ((slot * a.layers + layer) * len(MATRICES) + place) * _LORA_BYTES)


@kernel
def _shrink(a: Any, phase: int, layer: int, place: int, x: int, size: int) -> None:
    spans, blocks = pointer_i32(a.spans), a.shrunk_stride // BLOCK
    tasks = a.num_spans * blocks
    task = claim(a.board, phase)
    while task < tasks:
        span, block = task // blocks * 3, task % blocks
        first, rows = spans[span], spans[span + 1]
        lora = _lora_at(_record(a, layer, place, spans[span + 2]))
        if block * BLOCK < lora.rank:
            out = a.shrunk + first * a.shrunk_stride * 4
            shrink_block(x + first * size * 4, rows, size, lora.a, lora.scales, lora.rank, block, out, a.zeros)
        finish(a.board, phase)
        task = claim(a.board, phase)
    complete(a.board, phase, tasks)


@kernel
def _expand(a: Any, phase: int, layer: int, place: int, out: int, stride: int) -> None:
    spans, blocks = pointer_i32(a.spans), stride // BLOCK
    tasks = a.num_spans * blocks
    task = claim(a.board, phase)
    while task < tasks:
        span, block = task // blocks * 3, task % blocks
        first, rows = spans[span], spans[span + 1]
        lora = _lora_at(_record(a, layer, place, spans[span + 2]))
        if lora.rank > 0:
            shrunk = a.shrunk + first * a.shrunk_stride * 4
            expand_block(shrunk, rows, lora.rank, lora.b, block, out + first * stride * 4, stride)
        finish(a.board, phase)
        task = claim(a.board, phase)
    complete(a.board, phase, tasks)


@kernel
def adapt(a: Any, phase: int, layer: int, place: int, x: int, size: int, out: int, stride: int) -> None:
    """Add what their adapters make of x to the rows of a matrix's output that have one.

    Addresses of float32 x [rows, size] and out [rows, stride]; `place` of the matrix in `MATRICES`.
    """
    if a.num_spans != 0:
        _shrink(a, phase, layer, place, x, size)
        _expand(a, phase + 1, layer, place, out, stride)
