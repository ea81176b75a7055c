"""One forward pass on the CPU: every layer's phases, run by a team (see `slipstream_kernels.jit.threads`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from slipstream_kernels.jit.compiler import Job, kernel
from slipstream_kernels.jit.intrinsics import pointer_f32, pointer_i32, pointer_u16, pointer_u32, record_at, widened
from slipstream_kernels.jit.threads import claim, complete, finish
from slipstream_kernels.models.cpu import adapter_layers, expert_layers
from slipstream_kernels.models.cpu.adapter_layers import DOWN, GATE_UP, QKV, O, adapt
from slipstream_kernels.models.cpu.expert_layers import EXPERT_PHASES, MATRIX, compute_experts
from slipstream_kernels.ops.gelu_mul import gelu_mul_row
from slipstream_kernels.ops.kv_cache.host_rows import encode_row
from slipstream_kernels.ops.linear import linear_tasks
from slipstream_kernels.ops.quantised_linear import weight_task
from slipstream_kernels.ops.rms_norm import rms_norm_row
from slipstream_kernels.ops.rotary import rotate_head
from slipstream_kernels.ops.silu_mul import silu_mul_row
from slipstream_kernels.ops.soft_cap import soft_cap_row
from slipstream_kernels.ops.tree_attention import attend, attend_coded, list_slots

SIZES = (
    "hidden", "hidden_stride", "intermediate", "gate_up_stride", "layers", "heads", "kv_heads", "head_dim",
    "qkv_stride", "vocab_stride", "slots_room", "gelu",
)  # fmt: skip
"""Counts in elements; a stride is a row's width padded to whole blocks of the layer that writes it. gelu: 1 where a
gate is passed through GELU, 0 for SiLU."""
WEIGHTS = (
    "embedding", "input_norm", "qkv", "qkv_bias", "q_norm", "k_norm", "o", "post_norm", "gate_up", "down", "final_norm",
    "head", "zeros", "layer_forms", "o_bias", "gate_up_bias", "down_bias", "attention_norm", "mlp_norm", "router",
    "sinks",
)  # fmt: skip
"""Addresses; weights of all layers lie one after the other. Those of biases, norms and sinks that a model has not are
0: q_norm, k_norm and sinks of heads, attention_norm and mlp_norm of what is added to the residual stream. Of qkv, o,
gate_up, down, router and head it is that of a `MATRIX` for each layer, of layer_forms that of a `LAYER_FORM`."""
LAYER_FORM = np.dtype([(name, np.int64) for name in ("rotary", "reach", "experts", "head_norms", "temperature")])
"""The address of a layer's rotary table; which positions its rows see, see `AttentionForm.reach`; the address of the
matrices of its experts, 0: it has none; whether queries and keys are normalised by head; and the address of float32
factors of queries by position, 0: there are none. Of a layer with experts, gate_up and down are those of the expert
that computes every row."""
BUFFERS = ("x", "branch", "normed", "qkv_out", "attended", "gate_up_out", "activated", "scratch", "board")
"""Addresses of float32 [rows, stride] buffers, of each thread's slots and weights, and of the phases' counters. branch
is what attention or feed-forward layer add to x, where it is not added at once."""
ROOM = ("decode_room", "decode_stride")
"""Address of the threads' room for decoded weights, and the bytes of each."""
CACHE = ("keys", "values", "key_scales", "value_scales", "fixed_scales", "coded", "num_slots", "page_size")
"""coded: whether the addresses are those of codes and of their scales, see `PagedKV`."""
PLAN = (
    "rows", "token_ids", "positions", "write_slots", "page_lines", "prefix_lengths", "ancestor_slots",
    "ancestor_width", "num_ancestors", "page_table", "pages", "logit_rows", "num_logit_rows", "logits",
)  # fmt: skip

CAPTURE = ("states", "states_stride", "state_columns")
"""Address of bfloat16 [rows, states_stride], 0 where no boundary's states are wanted, and of the columns of each."""

NUMBERS = ("embed_scale", "attention_scale", "attention_cap", "logit_cap", "expert_limit")
"""float32: the factors of embeddings and of scores, and the soft bounds of scores and logits; 0: none. expert_limit: of
`clamped_swiglu_row`, by which experts gate; 0: they gate by SiLU."""

ARGS = np.dtype(
    [(name, np.int64) for name in SIZES + WEIGHTS + BUFFERS + ROOM + CACHE + PLAN + CAPTURE + adapter_layers.ADDRESSES]
    + [(name, np.int64) for name in expert_layers.SIZES + expert_layers.BUFFERS]
    + [("eps", np.float64)]
    + [(name, np.float32) for name in NUMBERS]
)
"""Arguments of the forward job."""

PHASES_PER_LAYER = 15 + EXPERT_PHASES
OTHER_PHASES = 6
"""The tickets of the threads, the embedding, the capture behind the last layer, the final norm, the head, its bound."""

_CAPPED = 4096
"""Logits of a task that bounds them."""

_args_at = record_at(ARGS)
_matrix_at = record_at(MATRIX)
_form_at = record_at(LAYER_FORM)
_FORM_BYTES = LAYER_FORM.itemsize
_MATRIX_BYTES = MATRIX.itemsize


@kernel
def _embed(a: Any, phase: int) -> None:
    row = claim(a.board, phase)
    while row < a.rows:
        token = pointer_i32(a.token_ids)[row]
        source = pointer_u16(a.embedding + token * a.hidden * 2)
        target = pointer_f32(a.x + row * a.hidden_stride * 4)
        for i in range(a.hidden):
            target[i] = widened(source[i]) * a.embed_scale
        for i in range(a.hidden, a.hidden_stride):
            target[i] = np.float32(0)
        finish(a.board, phase)
        row = claim(a.board, phase)
    complete(a.board, phase, a.rows)


@kernel
def _is_wanted(a: Any, boundary: int) -> bool:
    return bool(a.states != 0 and pointer_i32(a.state_columns)[boundary] >= 0)


@kernel
def _capture(a: Any, row: int, boundary: int, source: int) -> None:
    """Keep a row's state at a boundary that is wanted: the float32 row at `source`, rounded to bfloat16."""
    bits = pointer_u32(source)
    target = pointer_u16(a.states + (row * a.states_stride + pointer_i32(a.state_columns)[boundary]) * 2)
    for i in range(a.hidden):
        value = np.int64(bits[i])
        target[i] = np.uint16((value + 0x7FFF + ((value >> 16) & 1)) >> 16)


@kernel
def _norm(a: Any, phase: int, weight: int, boundary: int) -> None:
    """`boundary` is the one that the rows stand at, -1 in the midst of a layer."""
    captured = boundary >= 0 and _is_wanted(a, boundary)
    row = claim(a.board, phase)
    while row < a.rows:
        if captured:
            _capture(a, row, boundary, a.x + row * a.hidden_stride * 4)
        rms_norm_row(a.x + row * a.hidden_stride * 4, weight, a.hidden, a.eps, a.normed + row * a.hidden * 4)
        finish(a.board, phase)
        row = claim(a.board, phase)
    complete(a.board, phase, a.rows)


@kernel
def _linear(
    a: Any,
    phase: int,
    x: int,
    rows: int,
    size: int,
    matrix: int,
    out: int,
    stride: int,
    addend: int,
    addend_stride: int,
    room: int,
) -> None:
    """`matrix`: the address of a `MATRIX`; `room`: that of the thread for decoded weights."""
    blocks = stride // 64
    tasks = linear_tasks(rows, blocks)
    m = _matrix_at(matrix)
    task = claim(a.board, phase)
    while task < tasks:
        weight_task(
            task, x, rows, size, m.kind, m.weight, m.scales, m.zeros, m.group, blocks,
            out, stride, addend, addend_stride, room,
        )  # fmt: skip
        finish(a.board, phase)
        task = claim(a.board, phase)
    complete(a.board, phase, tasks)


@kernel
def _place_row(a: Any, layer: int, row: int) -> None:
    """Normalise and rotate a row's queries and keys, and write keys and values to its slot."""
    size = a.head_dim * 4
    form, position = _form_at(a.layer_forms + layer * _FORM_BYTES), pointer_i32(a.positions)[row]
    table = form.rotary + position * size
    slot = pointer_i32(a.write_slots)[row]
    q = a.qkv_out + row * a.qkv_stride * 4
    k = q + a.heads * size
    v = k + a.kv_heads * size
    for head in range(a.heads):
        if form.head_norms:
            rms_norm_row(q + head * size, a.q_norm + layer * size, a.head_dim, a.eps, q + head * size)
        rotate_head(q + head * size, table, a.head_dim, q + head * size)
        if form.temperature != 0:
            query, factor = pointer_f32(q + head * size), pointer_f32(form.temperature)[position]
            for i in range(a.head_dim):
                query[i] *= factor
    for head in range(a.kv_heads):
        if form.head_norms:
            rms_norm_row(k + head * size, a.k_norm + layer * size, a.head_dim, a.eps, k + head * size)
        place = (layer * a.kv_heads + head) * a.num_slots + slot
        if a.coded:
            rotate_head(k + head * size, table, a.head_dim, k + head * size)
            fixed = pointer_f32(a.fixed_scales + layer * 8)
            key, value = a.keys + place * a.head_dim, a.values + place * a.head_dim
            pointer_f32(a.key_scales)[place] = encode_row(k + head * size, a.head_dim, fixed[0], key)
            pointer_f32(a.value_scales)[place] = encode_row(v + head * size, a.head_dim, fixed[1], value)
        else:
            rotate_head(k + head * size, table, a.head_dim, a.keys + place * size)
            source, target = pointer_f32(v + head * size), pointer_f32(a.values + place * size)
            for i in range(a.head_dim):
                target[i] = source[i]


@kernel
def _place(a: Any, phase: int, layer: int) -> None:
    row = claim(a.board, phase)
    while row < a.rows:
        _place_row(a, layer, row)
        finish(a.board, phase)
        row = claim(a.board, phase)
    complete(a.board, phase, a.rows)


@kernel
def _attention(a: Any, phase: int, layer: int, scratch: int) -> None:
    """A task is one head of one row. `scratch`: int32 slots, then float32 weights, slots_room of each."""
    tasks = a.rows * a.heads
    size = a.head_dim * 4
    reach = _form_at(a.layer_forms + layer * _FORM_BYTES).reach
    task = claim(a.board, phase)
    while task < tasks:
        row, head = task // a.heads, task % a.heads
        line = a.page_table + pointer_i32(a.page_lines)[row] * a.pages * 4
        path = a.ancestor_slots + row * a.ancestor_width * 4
        prefix, ancestors = pointer_i32(a.prefix_lengths)[row], pointer_i32(a.num_ancestors)[row]
        count = list_slots(line, a.page_size, prefix, path, ancestors, reach, scratch)
        store = (layer * a.kv_heads + head // (a.heads // a.kv_heads)) * a.num_slots
        query = a.qkv_out + (row * a.qkv_stride + head * a.head_dim) * 4
        out = a.attended + (row * a.heads + head) * size
        sink = pointer_f32(a.sinks)[layer * a.heads + head] if a.sinks != 0 else np.float32(-np.inf)
        weights = scratch + a.slots_room * 4
        if a.coded:
            codes = store * a.head_dim
            attend_coded(
                query, a.keys + codes, a.key_scales + store * 4, a.values + codes, a.value_scales + store * 4,
                scratch, count, a.head_dim, a.attention_scale, a.attention_cap, sink, weights, out,
            )  # fmt: skip
        else:
            attend(
                query, a.keys + store * size, a.values + store * size, scratch, count, a.head_dim, a.attention_scale,
                a.attention_cap, sink, weights, out,
            )  # fmt: skip
        finish(a.board, phase)
        task = claim(a.board, phase)
    complete(a.board, phase, tasks)


@kernel
def _activate(a: Any, phase: int, size: int, stride: int) -> None:
    row = claim(a.board, phase)
    while row < a.rows:
        gate = a.gate_up_out + row * stride * 4
        up, out = gate + size * 4, a.activated + row * size * 4
        if a.gelu:
            gelu_mul_row(gate, up, size, out)
        else:
            silu_mul_row(gate, up, size, out)
        finish(a.board, phase)
        row = claim(a.board, phase)
    complete(a.board, phase, a.rows)


@kernel
def _capture_last(a: Any, phase: int) -> None:
    """The boundaries behind the last layer, before and after the final norm, of all rows."""
    before, after = _is_wanted(a, a.layers), _is_wanted(a, a.layers + 1)
    if not before and not after:
        return
    row = claim(a.board, phase)
    while row < a.rows:
        x, normed = a.x + row * a.hidden_stride * 4, a.normed + row * a.hidden * 4
        if before:
            _capture(a, row, a.layers, x)
        if after:
            rms_norm_row(x, a.final_norm, a.hidden, a.eps, normed)
            _capture(a, row, a.layers + 1, normed)
        finish(a.board, phase)
        row = claim(a.board, phase)
    complete(a.board, phase, a.rows)


@kernel
def _final_norm(a: Any, phase: int) -> None:
    """Normalised rows whose logits are wanted, in the order wanted."""
    wanted = pointer_i32(a.logit_rows)
    i = claim(a.board, phase)
    while i < a.num_logit_rows:
        x = a.x + wanted[i] * a.hidden_stride * 4
        rms_norm_row(x, a.final_norm, a.hidden, a.eps, a.normed + i * a.hidden * 4)
        finish(a.board, phase)
        i = claim(a.board, phase)
    complete(a.board, phase, a.num_logit_rows)


@kernel
def _bound_logits(a: Any, phase: int) -> None:
    if a.logit_cap == 0:
        return
    parts = (a.vocab_stride + _CAPPED - 1) // _CAPPED
    task = claim(a.board, phase)
    while task < a.num_logit_rows * parts:
        start = task % parts * _CAPPED
        row = a.logits + (task // parts * a.vocab_stride + start) * 4
        soft_cap_row(row, min(a.vocab_stride - start, _CAPPED), a.logit_cap)
        finish(a.board, phase)
        task = claim(a.board, phase)
    complete(a.board, phase, a.num_logit_rows * parts)


@kernel
def _add(
    a: Any, phase: int, layer: int, place: int, inputs: int, size: int, matrix: int, bias: int, norm: int, room: int
) -> None:  # fmt: skip
    """Add a projection of `inputs`, with its bias and its norm if there are any, to the residual stream: four phases.

    `place`: the projection's in `adapter_layers.MATRICES`.
    """
    stride = a.hidden_stride
    if bias == 0 and norm == 0:
        _linear(a, phase, inputs, a.rows, size, matrix, a.x, stride, a.x, stride, room)
        adapt(a, phase + 1, layer, place, inputs, size, a.x, stride)
        return
    addend = bias + layer * stride * 4 if bias != 0 else a.zeros
    _linear(a, phase, inputs, a.rows, size, matrix, a.branch, stride, addend, 0, room)
    adapt(a, phase + 1, layer, place, inputs, size, a.branch, stride)
    phase += 3
    row = claim(a.board, phase)
    while row < a.rows:
        source = a.branch + row * stride * 4
        if norm != 0:
            rms_norm_row(source, norm + layer * a.hidden * 4, a.hidden, a.eps, source)
        branch, x = pointer_f32(source), pointer_f32(a.x + row * stride * 4)
        for i in range(a.hidden):
            x[i] += branch[i]
        finish(a.board, phase)
        row = claim(a.board, phase)
    complete(a.board, phase, a.rows)


@kernel
def _mixture(a: Any, phase: int, layer: int, room: int) -> None:
    """What experts make of the normalised rows, and the one that computes every row if there is one."""
    at, zeros, size, stride = layer * _MATRIX_BYTES, a.zeros, a.shared_size, a.shared_stride
    bias = _matrix_at(a.router + at).bias
    addend = bias if bias != 0 else zeros
    _linear(a, phase, a.normed, a.rows, a.hidden, a.router + at, a.scores, a.router_stride, addend, 0, room)
    if size != 0:
        _linear(a, phase + 1, a.normed, a.rows, a.hidden, a.gate_up + at, a.gate_up_out, stride, zeros, 0, room)
        _activate(a, phase + 2, size, stride)
        _linear(a, phase + 3, a.activated, a.rows, size, a.down + at, a.branch, a.hidden_stride, zeros, 0, room)
    experts = _form_at(a.layer_forms + layer * _FORM_BYTES).experts
    compute_experts(a, phase + 4, experts, a.branch if size != 0 else 0, room)


@kernel
def _layer(a: Any, phase: int, layer: int, scratch: int, room: int) -> None:
    hidden, q_size, at = a.hidden, a.heads * a.head_dim, layer * _MATRIX_BYTES
    bias = a.qkv_bias + layer * a.qkv_stride * 4 if a.qkv_bias != 0 else a.zeros

    _norm(a, phase, a.input_norm + layer * hidden * 4, layer)
    _linear(a, phase + 1, a.normed, a.rows, hidden, a.qkv + at, a.qkv_out, a.qkv_stride, bias, 0, room)
    adapt(a, phase + 2, layer, QKV, a.normed, hidden, a.qkv_out, a.qkv_stride)
    _place(a, phase + 4, layer)
    _attention(a, phase + 5, layer, scratch)
    _add(a, phase + 6, layer, O, a.attended, q_size, a.o + at, a.o_bias, a.attention_norm, room)
    _norm(a, phase + 10, a.post_norm + layer * hidden * 4, -1)
    if _form_at(a.layer_forms + layer * _FORM_BYTES).experts != 0:
        _mixture(a, phase + 11, layer, room)
        return
    mlp_bias = a.gate_up_bias + layer * a.gate_up_stride * 4 if a.gate_up_bias != 0 else a.zeros
    _linear(a, phase + 11, a.normed, a.rows, hidden, a.gate_up + at, a.gate_up_out, a.gate_up_stride, mlp_bias, 0, room)
    adapt(a, phase + 12, layer, GATE_UP, a.normed, hidden, a.gate_up_out, a.gate_up_stride)
    _activate(a, phase + 14, a.intermediate, a.gate_up_stride)
    _add(a, phase + 15, layer, DOWN, a.activated, a.intermediate, a.down + at, a.down_bias, a.mlp_norm, room)


def _forward(args: int) -> None:
    a = _args_at(args)
    thread = claim(a.board, 0)
    scratch = a.scratch + thread * a.slots_room * 8
    room = a.decode_room + thread * a.decode_stride
    _embed(a, 1)
    phase = 2
    for layer in range(a.layers):
        _layer(a, phase, layer, scratch, room)
        phase += PHASES_PER_LAYER
    _capture_last(a, phase)
    _final_norm(a, phase + 1)
    _linear(a, phase + 2, a.normed, a.num_logit_rows, a.hidden, a.head, a.logits, a.vocab_stride, a.zeros, 0, room)
    _bound_logits(a, phase + 3)


forward_job = Job(_forward)
"""The whole pass; its argument is the address of an `ARGS` record."""
