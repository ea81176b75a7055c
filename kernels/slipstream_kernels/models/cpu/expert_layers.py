"""A layer of experts on the CPU: its phases, run by a team as those of `forward`.

Rows go to their experts in groups, so that an expert's weights are read once for its rows; every product is that of
`linear`, one chain for each output, so a row's bits are those that it has alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from slipstream_kernels.jit.compiler import kernel
from slipstream_kernels.jit.intrinsics import pointer_f32, pointer_i32, record_at
from slipstream_kernels.jit.threads import claim, complete, finish
from slipstream_kernels.ops.experts.clamped_swiglu import clamped_swiglu_row
from slipstream_kernels.ops.experts.grouping import ITEM, combine_row, group_pairs, most_items
from slipstream_kernels.ops.experts.routing import route_row
from slipstream_kernels.ops.linear import BLOCK
from slipstream_kernels.ops.quantised_linear import weight_task
from slipstream_kernels.ops.silu_mul import silu_mul_row

MATRIX = np.dtype([(name, np.int64) for name in ("kind", "weight", "scales", "zeros", "group", "bias")])
"""kind: 0 of a bfloat16 weight, else one of `packing.KINDS`; addresses of its arrays; its group. bias: of a
router and of experts, the address of float32 of padded width; 0: there is none."""

SIZES = (
    "experts", "experts_chosen", "expert_weights_kind", "expert_inputs_weighed", "expert_size", "expert_stride",
    "router_stride", "shared_size", "shared_stride",
)  # fmt: skip
"""Of layers of experts, 0 where there are none: how many there are, and are chosen; the kind of their weights, see
`route_row`, and whether these are factors of what experts read, not of what they say; intermediate size of each, and of
the one that computes every row; strides of gate and up beside one another, and of scores."""
BUFFERS = (
    "scores", "expert_ids", "expert_weights", "expert_starts", "expert_places", "expert_items", "expert_in",
    "expert_gate_up", "expert_activated", "expert_out", "experts_awake",
)  # fmt: skip
"""Addresses: float32 [rows, router_stride] and [rows, chosen] of weights; int32 [rows, chosen] of ids and places,
[experts] of starts and [most_items, ITEM] of items; float32 [pairs, width] of what pairs read,
gate, activate and say, in the order of places; int32 [1], to which layers add how many of their experts have rows."""

EXPERT_PHASES = 7

_matrix_at = record_at(MATRIX)
_MATRIX_BYTES = MATRIX.itemsize


@kernel
def _route(a: Any, phase: int) -> None:
    row = claim(a.board, phase)
    while row < a.rows:
        at = row * a.experts_chosen * 4
        scores = a.scores + row * a.router_stride * 4
        route_row(
            scores, a.experts, a.experts_chosen, a.expert_weights_kind, a.expert_ids + at, a.expert_weights + at
        )  # fmt: skip
        finish(a.board, phase)
        row = claim(a.board, phase)
    complete(a.board, phase, a.rows)


@kernel
def _group(a: Any, phase: int) -> None:
    if claim(a.board, phase) == 0:
        pairs = a.rows * a.experts_chosen
        pointer_i32(a.experts_awake)[0] += group_pairs(
            a.expert_ids, pairs, a.experts, a.expert_starts, a.expert_places, a.expert_items
        )
        finish(a.board, phase)
    complete(a.board, phase, 1)


@kernel
def _gather(a: Any, phase: int) -> None:
    """The normalised rows to the places of their pairs, times the pairs' weights where these are of inputs."""
    pairs = a.rows * a.experts_chosen
    pair = claim(a.board, phase)
    while pair < pairs:
        place = pointer_i32(a.expert_places)[pair]
        source = pointer_f32(a.normed + pair // a.experts_chosen * a.hidden * 4)
        target = pointer_f32(a.expert_in + place * a.hidden * 4)
        if a.expert_inputs_weighed:
            weight = pointer_f32(a.expert_weights)[pair]
            for i in range(a.hidden):
                target[i] = weight * source[i]
        else:
            for i in range(a.hidden):
                target[i] = source[i]
        finish(a.board, phase)
        pair = claim(a.board, phase)
    complete(a.board, phase, pairs)


@kernel
def _products(a: Any, phase: int, matrices: int, x: int, size: int, out: int, stride: int, room: int) -> None:
    """The rows of each expert times its weight: the address of the first `MATRIX`; those of experts lie two apart.

    There are as many tasks as there can be, some of them without rows: how many have rows is written anew in the next
    layer, when a thread that is late may still ask.
    """
    blocks = stride // BLOCK
    tasks = most_items(a.rows * a.experts_chosen, a.experts) * blocks
    task = claim(a.board, phase)
    while task < tasks:
        item = pointer_i32(a.expert_items + task // blocks * ITEM * 4)
        first: Any = np.int64(item[1])
        m = _matrix_at(matrices + item[0] * 2 * _MATRIX_BYTES)
        addend = m.bias if m.bias != 0 else a.zeros
        if item[2] > 0:
            weight_task(
                task % blocks, x + first * size * 4, item[2], size, m.kind, m.weight, m.scales, m.zeros, m.group,
                blocks, out + first * stride * 4, stride, addend, 0, room,
            )  # fmt: skip
        finish(a.board, phase)
        task = claim(a.board, phase)
    complete(a.board, phase, tasks)


@kernel
def _activate(a: Any, phase: int) -> None:
    pairs = a.rows * a.experts_chosen
    pair = claim(a.board, phase)
    while pair < pairs:
        gate = a.expert_gate_up + pair * a.expert_stride * 4
        up, out = gate + a.expert_size * 4, a.expert_activated + pair * a.expert_size * 4
        if a.expert_limit > 0:
            clamped_swiglu_row(gate, up, a.expert_size, a.expert_limit, out)
        else:
            silu_mul_row(gate, up, a.expert_size, out)
        finish(a.board, phase)
        pair = claim(a.board, phase)
    complete(a.board, phase, pairs)


@kernel
def _combine(a: Any, phase: int, shared: int) -> None:
    row = claim(a.board, phase)
    while row < a.rows:
        at = row * a.experts_chosen * 4
        weights, score = a.expert_weights + at, a.scores + (row * a.router_stride + a.experts) * 4
        if a.expert_inputs_weighed:
            weights, score = 0, 0
        combine_row(
            a.expert_out, a.hidden_stride, a.expert_places + at, weights, a.experts_chosen,
            shared + row * a.hidden_stride * 4 if shared != 0 else 0, score, a.hidden, a.x + row * a.hidden_stride * 4,
        )  # fmt: skip
        finish(a.board, phase)
        row = claim(a.board, phase)
    complete(a.board, phase, a.rows)


@kernel
def compute_experts(a: Any, phase: int, matrices: int, shared: int, room: int) -> None:
    """Add to the residual stream what the experts make of `normed`, whose scores are there: `EXPERT_PHASES` phases.

    matrices: address of the experts' `MATRIX` records, of gate and up above one another and of down, by turns. shared:
    address of what the shared expert says, float32 [rows, hidden_stride]; 0: there is none. a: a record of `forward`.
    """
    _route(a, phase)
    _group(a, phase + 1)
    _gather(a, phase + 2)
    _products(a, phase + 3, matrices, a.expert_in, a.hidden, a.expert_gate_up, a.expert_stride, room)
    _activate(a, phase + 4)
    down = matrices + _MATRIX_BYTES
    _products(a, phase + 5, down, a.expert_activated, a.expert_size, a.expert_out, a.hidden_stride, room)
    _combine(a, phase + 6, shared)
