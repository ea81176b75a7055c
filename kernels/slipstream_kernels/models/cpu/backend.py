"""The buffers of a model's passes on the CPU, and the call of the forward job."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from slipstream_kernels.jit.arrays import aligned_empty
from slipstream_kernels.jit.compiler import kernel, tuple_type
from slipstream_kernels.jit.intrinsics import address_f32, address_i32, address_u8
from slipstream_kernels.jit.threads import COUNTER_BYTES, Team
from slipstream_kernels.models.capture_layers import Capture
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.checkpoint.model_form import ModelForm
from slipstream_kernels.models.cpu.adapter_table import AdapterTable, PackedAdapter, adapter_spans
from slipstream_kernels.models.cpu.expert_buffers import expert_sizes, expert_words
from slipstream_kernels.models.cpu.forward import ARGS, OTHER_PHASES, PHASES_PER_LAYER, forward_job
from slipstream_kernels.models.cpu.packed_matrix import Weight
from slipstream_kernels.models.cpu.packed_weights import pack_weights
from slipstream_kernels.models.cpu.paged_kv import PagedKV
from slipstream_kernels.models.cpu.row_batch import RowBatch
from slipstream_kernels.ops.linear import padded
from slipstream_kernels.ops.tree_attention import float32_scale

Array = npt.NDArray[np.generic]

_FAULTS = (
    "",
    "arrays of one entry a row differ in length",
    "token_ids are outside the vocabulary",
    "positions are outside the context",
    "write_slots are outside the cache",
    "page_lines are outside the page table",
    "prefix_lengths and num_ancestors do not add up to position + 1",
    "num_ancestors exceed the width of ancestor_slots",
    "page_table is too short for prefix_lengths or holds unknown pages",
    "ancestor_slots are outside the cache",
    "logit_rows are outside the batch",
    "adapters are not those of loaded slots, or not one a row",
)
"""What `_fault` found, by its result."""


_BatchArrays: Any = tuple_type(RowBatch, "_BatchArrays", __name__)
_arrays_of = attrgetter(*[field.name for field in fields(RowBatch)])


class CpuBackend:
    """Runs passes on a team of threads. Passes are serialised; a returned array belongs to the caller."""

    __slots__ = (
        "_adapters", "_args", "_board", "_buffers", "_capacity", "_captured", "_config", "_entries", "_lock", "_room",
        "_rows", "_spans", "_weights", "team",
    )  # fmt: skip

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Weight],
        threads: int,
        scored: torch.Tensor | None = None,
    ) -> None:
        """scored: int64, the tokens that have logits; None: all."""
        self._config = config
        self._entries = config.vocab_size if scored is None else len(scored)
        self._weights = pack_weights(config, weights, scored)
        self._args = np.zeros(1, ARGS)
        self._board = _bytes(COUNTER_BYTES * (OTHER_PHASES + PHASES_PER_LAYER * config.num_layers))
        self._buffers: dict[str, Array] = {}
        self._capacity = 0
        self._adapters = AdapterTable(config.num_layers)
        self._spans = np.zeros((0, 3), np.int32)
        self._rows = 0  # of the last pass
        self._captured: Capture | None = None  # by the last pass
        self._lock = threading.Lock()
        self.team = Team(threads)
        self._room = _bytes(threads * self._weights.room)
        self._set(_sizes(config, self._entries))
        if config.form.experts is not None:
            self._set(expert_sizes(config.form.experts))
        self._set({name: array.ctypes.data for name, array in self._weights.arrays.items()})
        self._set({"decode_room": self._room.ctypes.data, "decode_stride": self._weights.room})
        self._args["eps"] = config.rms_norm_eps
        for name, number in _numbers(config).items():
            self._args[name] = number

    def forward(self, cache: PagedKV, rows: RowBatch, capture: Capture | None = None) -> npt.NDArray[np.float32]:
        """See `CausalLM.forward`."""
        with self._lock:
            self._reserve(len(rows))
            self._set_capture(capture, len(rows))
            logits = np.empty((len(rows.logit_rows), int(self._args["vocab_stride"][0])), np.float32)
            fault = _bind(
                self._args,
                self._board,
                cache.addresses,
                cache.form.fp8,
                cache.num_slots,
                cache.num_pages,
                cache.page_size,
                self._config.vocab_size,
                self._config.max_context,
                self._adapters.loaded,
                self._spans,
                _BatchArrays._make(_arrays_of(rows)),
                logits,
            )
            if fault:
                raise ValueError(f"malformed batch: {_FAULTS[fault]}")
            self._rows = len(rows)
            if self._awake is not None:
                self._awake[0] = 0
            if len(rows):
                self.team.run(forward_job, self._args.ctypes.data)
        return logits[:, : self._entries]

    @property
    def experts_awake(self) -> int:
        """See `CausalLM.experts_awake`."""
        return 0 if self._awake is None else int(self._awake[0])

    @property
    def _awake(self) -> npt.NDArray[np.int32] | None:
        buffer = self._buffers.get("experts_awake")
        return None if buffer is None else buffer.view(np.int32)

    def last_logits(self, rows: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        """See `CausalLM.last_logits`: a pass of no rows over what the last one has left in the residual stream."""
        with self._lock:
            if len(rows) and not 0 <= rows.min() <= rows.max() < self._rows:
                raise ValueError(f"the last pass had {self._rows} rows, asked for {rows.min()} to {rows.max()}")
            logits = np.empty((len(rows), int(self._args["vocab_stride"][0])), np.float32)
            self._board[:] = 0
            self._set_capture(None, 0)
            self._set({"rows": 0, "num_spans": 0, "num_logit_rows": len(rows)})
            self._set({"logit_rows": rows.ctypes.data, "logits": logits.ctypes.data})
            if len(rows):
                self.team.run(forward_job, self._args.ctypes.data)
        return logits[:, : self._entries]

    def reserve_adapters(self, slots: int) -> None:
        """See `CausalLM.reserve_adapters`."""
        self._adapters = AdapterTable(self._config.num_layers, slots)
        self._args["loras"] = self._adapters.records.ctypes.data

    def install_adapter(self, slot: int, adapter: PackedAdapter) -> None:
        """See `CausalLM.install_adapter`."""
        with self._lock:
            self._adapters.install(slot, adapter)
            if self._adapters.width > self._args["shrunk_stride"][0]:
                self._args["shrunk_stride"] = self._adapters.width
                self._allocate(self._capacity)
                self._rows = 0  # what the last pass has left is gone

    def remove_adapter(self, slot: int) -> None:
        """See `CausalLM.remove_adapter`."""
        with self._lock:
            self._adapters.remove(slot)

    def _reserve(self, rows: int) -> None:
        """Grow the buffers to hold `rows` rows."""
        if rows > self._capacity:
            self._allocate(max(16, 1 << (rows - 1).bit_length()))

    def _allocate(self, capacity: int) -> None:
        self._capacity = capacity
        config, room = self._config, _slots_room(self._config)
        widths = {
            "x": padded(config.hidden_size),
            "branch": padded(config.hidden_size) if _has_branch(config.form) else 0,
            "normed": config.hidden_size,
            "qkv_out": padded(config.q_size + 2 * config.kv_size),
            "attended": config.q_size,
            "gate_up_out": padded(2 * config.widest_intermediate),
            "activated": config.widest_intermediate,
            "shrunk": int(self._args["shrunk_stride"][0]),
        }
        words = {name: capacity * width for name, width in widths.items()}
        if config.form.experts is not None:
            words |= expert_words(config.form.experts, config.hidden_size, capacity)
        self._buffers = {name: _bytes(size * 4) for name, size in words.items()}
        self._spans = np.zeros((capacity, 3), np.int32)
        self._buffers["scratch"] = _bytes(self.team.threads * room * 8)
        self._set({name: array.ctypes.data for name, array in self._buffers.items()})

    def _set_capture(self, capture: Capture | None, rows: int) -> None:
        if capture is not None and len(capture.rows) < rows:
            raise ValueError(f"a capture of {len(capture.rows)} rows for a pass of {rows}")
        if capture is self._captured:
            return
        self._captured = capture
        if capture is None:
            self._set({"states": 0})
            return
        states, columns = capture.addresses
        self._set({"states": states, "states_stride": capture.rows.shape[1], "state_columns": columns})

    def _set(self, values: Mapping[str, int]) -> None:
        for name, value in values.items():
            self._args[name] = value


def _sizes(config: ModelConfig, entries: int) -> dict[str, int]:
    return {
        "hidden": config.hidden_size,
        "hidden_stride": padded(config.hidden_size),
        "intermediate": config.intermediate_size,
        "gate_up_stride": padded(2 * config.intermediate_size),
        "layers": config.num_layers,
        "heads": config.num_heads,
        "kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "qkv_stride": padded(config.q_size + 2 * config.kv_size),
        "vocab_stride": padded(entries),
        "slots_room": _slots_room(config),
        "gelu": config.form.activation == "gelu_tanh",
    }


def _numbers(config: ModelConfig) -> dict[str, np.float32]:
    form, attention = config.form, config.attention_of(0)
    return {
        "embed_scale": np.float32(form.embed_scale),
        "attention_scale": float32_scale(attention, config.head_dim),
        "attention_cap": np.float32(attention.cap),
        "logit_cap": np.float32(form.logit_cap),
        "expert_limit": np.float32(0 if form.experts is None else form.experts.limit),
    }


def _has_branch(form: ModelForm) -> bool:
    """Whether what a layer adds to the residual stream, or a part of that, is added in a phase of its own."""
    shared = form.experts is not None and form.experts.shared_size > 0
    return form.branch_norms or form.output_bias or form.mlp_bias or shared


def _slots_room(config: ModelConfig) -> int:
    return (config.max_context + 31) // 16 * 16


def _bytes(size: int) -> npt.NDArray[np.uint8]:
    return aligned_empty((size,), np.uint8)


@kernel
def _lengths_agree(batch: RowBatch) -> bool:
    rows = len(batch.token_ids)
    lengths = (
        len(batch.positions),
        len(batch.write_slots),
        len(batch.page_lines),
        len(batch.prefix_lengths),
        len(batch.ancestor_slots),
        len(batch.num_ancestors),
    )
    for length in lengths:  # noqa: SIM110 (kernels have no generators)
        if length != rows:
            return False
    return True


@kernel
def _row_fault(batch: RowBatch, row: int, vocab_size: int, context: int, slots: int) -> int:
    prefix, ancestors = batch.prefix_lengths[row], batch.num_ancestors[row]
    if not 0 <= batch.token_ids[row] < vocab_size:
        return 2
    if not 0 <= batch.positions[row] < context:
        return 3
    if not 0 <= batch.write_slots[row] < slots:
        return 4
    if not 0 <= batch.page_lines[row] < len(batch.page_table):
        return 5
    if prefix < 0 or ancestors < 0 or prefix + ancestors != batch.positions[row] + 1:
        return 6
    return 7 if ancestors > batch.ancestor_slots.shape[1] else 0


@kernel
def _path_fault(batch: RowBatch, row: int, num_pages: int, page_size: int, slots: int) -> int:
    pages = (batch.prefix_lengths[row] + page_size - 1) // page_size
    if pages > batch.page_table.shape[1]:
        return 8
    for i in range(pages):
        if not 0 <= batch.page_table[batch.page_lines[row], i] < num_pages:
            return 8
    for i in range(batch.num_ancestors[row]):
        if not 0 <= batch.ancestor_slots[row, i] < slots:
            return 9
    return 0


@kernel
def _adapters_fit(batch: RowBatch, loaded: npt.NDArray[np.bool_]) -> bool:
    if len(batch.adapters) not in (0, len(batch.token_ids)):
        return False
    for slot in batch.adapters:  # noqa: SIM110 (kernels have no generators)
        if slot >= len(loaded) or (slot >= 0 and not loaded[slot]):
            return False
    return True


@kernel
def _fault(
    batch: RowBatch,
    vocab_size: int,
    context: int,
    slots: int,
    num_pages: int,
    page_size: int,
    loaded: npt.NDArray[np.bool_],
) -> int:
    if not _lengths_agree(batch):
        return 1
    if not _adapters_fit(batch, loaded):
        return 11
    rows = len(batch.token_ids)
    for row in range(rows):
        fault = _row_fault(batch, row, vocab_size, context, slots)
        if fault == 0:
            fault = _path_fault(batch, row, num_pages, page_size, slots)
        if fault:
            return fault
    for row in batch.logit_rows:
        if not 0 <= row < rows:
            return 10
    return 0


@kernel
def _bind(
    args: npt.NDArray[Any],
    board: npt.NDArray[np.uint8],
    store: npt.NDArray[np.int64],
    coded: bool,
    slots: int,
    num_pages: int,
    page_size: int,
    vocab_size: int,
    context: int,
    loaded: npt.NDArray[np.bool_],
    spans: npt.NDArray[np.int32],
    batch: RowBatch,
    logits: npt.NDArray[np.float32],
) -> int:
    """Check a batch and write it into the job's arguments; returns an index into `_FAULTS`."""
    fault = _fault(batch, vocab_size, context, slots, num_pages, page_size, loaded)
    if fault:
        return fault
    board[:] = 0
    a = args[0]
    a.board = address_u8(board)
    a.keys, a.values, a.key_scales, a.value_scales, a.fixed_scales = store[0], store[1], store[2], store[3], store[4]
    a.coded, a.num_slots, a.page_size = coded, slots, page_size
    a.rows, a.token_ids, a.positions = len(batch.token_ids), address_i32(batch.token_ids), address_i32(batch.positions)
    a.write_slots, a.page_lines = address_i32(batch.write_slots), address_i32(batch.page_lines)
    a.prefix_lengths, a.num_ancestors = address_i32(batch.prefix_lengths), address_i32(batch.num_ancestors)
    a.ancestor_slots, a.ancestor_width = address_i32(batch.ancestor_slots), batch.ancestor_slots.shape[1]
    a.spans, a.num_spans = address_i32(spans), adapter_spans(batch.adapters, spans)
    a.page_table, a.pages = address_i32(batch.page_table), batch.page_table.shape[1]
    a.logit_rows, a.num_logit_rows, a.logits = address_i32(batch.logit_rows), len(batch.logit_rows), address_f32(logits)
    return 0
