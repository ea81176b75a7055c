"""A model's weights packed for the CPU, the buffers of its passes and the call of the forward job."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from slipstream_kernels.intrinsics import address_f32, address_i32, address_u8
from slipstream_kernels.jit import kernel
from slipstream_kernels.models.config import ModelConfig
from slipstream_kernels.models.cpu_forward import ARGS, OTHER_PHASES, PHASES_PER_LAYER, forward_job
from slipstream_kernels.models.row_batch import RowBatch
from slipstream_kernels.ops.linear import pack_weight, padded
from slipstream_kernels.ops.rotary import rotary_table
from slipstream_kernels.paged_kv import PagedKV
from slipstream_kernels.threads import COUNTER_BYTES, Team

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
)
"""What `_fault` found, by its result."""


class CpuBackend:
    """Runs passes on a team of threads. Passes are serialised; a returned array belongs to the caller."""

    __slots__ = ("_args", "_arrays", "_board", "_buffers", "_capacity", "_config", "_lock", "team")

    def __init__(self, config: ModelConfig, tensors: Mapping[str, torch.Tensor], threads: int) -> None:
        self._config = config
        self._arrays = _packed(config, tensors)
        self._args = np.zeros(1, ARGS)
        self._board = _aligned(COUNTER_BYTES * (OTHER_PHASES + PHASES_PER_LAYER * config.num_layers))
        self._buffers: dict[str, Array] = {}
        self._capacity = 0
        self._lock = threading.Lock()
        self.team = Team(threads)
        self._set(_sizes(config) | {name: array.ctypes.data for name, array in self._arrays.items()})
        self._args["eps"] = config.rms_norm_eps

    def forward(self, cache: PagedKV, rows: RowBatch) -> npt.NDArray[np.float32]:
        """See `CausalLM.forward`."""
        with self._lock:
            self._reserve(len(rows))
            logits = np.empty((len(rows.logit_rows), int(self._args["vocab_stride"][0])), np.float32)
            fault = _bind(
                self._args, self._board, cache.keys, cache.values, cache.page_size, self._config.vocab_size,
                self._config.max_context, rows.token_ids, rows.positions, rows.write_slots, rows.page_lines,
                rows.prefix_lengths, rows.ancestor_slots, rows.num_ancestors, rows.page_table, rows.logit_rows, logits,
            )  # fmt: skip
            if fault:
                raise ValueError(f"malformed batch: {_FAULTS[fault]}")
            if len(rows):
                self.team.run(forward_job, self._args.ctypes.data)
        return logits[:, : self._config.vocab_size]

    def _reserve(self, rows: int) -> None:
        """Grow the buffers to hold `rows` rows."""
        if rows <= self._capacity:
            return
        self._capacity = capacity = max(16, 1 << (rows - 1).bit_length())
        config, room = self._config, _slots_room(self._config)
        widths = {
            "x": padded(config.hidden_size),
            "normed": config.hidden_size,
            "qkv_out": padded(config.q_size + 2 * config.kv_size),
            "attended": config.q_size,
            "gate_up_out": padded(2 * config.intermediate_size),
            "activated": config.intermediate_size,
        }
        self._buffers = {name: _aligned(capacity * width * 4) for name, width in widths.items()}
        self._buffers["scratch"] = _aligned(self.team.threads * room * 8)
        self._set({name: array.ctypes.data for name, array in self._buffers.items()})

    def _set(self, values: Mapping[str, int]) -> None:
        for name, value in values.items():
            self._args[name] = value


def _sizes(config: ModelConfig) -> dict[str, int]:
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
        "vocab_stride": padded(config.vocab_size),
        "slots_room": _slots_room(config),
    }


def _slots_room(config: ModelConfig) -> int:
    return (config.max_context + 31) // 16 * 16


def _packed(config: ModelConfig, tensors: Mapping[str, torch.Tensor]) -> dict[str, Array]:
    """Arrays by their name in `cpu_forward.WEIGHTS`."""

    def layers(*names: str) -> list[torch.Tensor]:
        """The named tensors of each layer, one above the other."""
        return [
            torch.cat([tensors[f"model.layers.{layer}.{name}"] for name in names]) for layer in range(config.num_layers)
        ]

    def matrices(*names: str) -> Array:
        return np.stack([pack_weight(weight) for weight in layers(*names)])

    def vectors(*names: str) -> Array:
        return torch.stack(layers(*names)).float().numpy()

    embedding = tensors["model.embed_tokens.weight"].contiguous()
    head = embedding if config.tie_word_embeddings else tensors["lm_head.weight"]
    qkv = [f"self_attn.{name}_proj" for name in "qkv"]
    arrays: dict[str, Array] = {
        "embedding": embedding.view(torch.uint16).numpy(),
        "input_norm": vectors("input_layernorm.weight"),
        "qkv": matrices(*(f"{name}.weight" for name in qkv)),
        "o": matrices("self_attn.o_proj.weight"),
        "post_norm": vectors("post_attention_layernorm.weight"),
        "gate_up": matrices("mlp.gate_proj.weight", "mlp.up_proj.weight"),
        "down": matrices("mlp.down_proj.weight"),
        "final_norm": tensors["model.norm.weight"].float().numpy(),
        "head": pack_weight(head),
        "zeros": np.zeros(max(padded(config.vocab_size), padded(2 * config.intermediate_size)), np.float32),
        "rotary": rotary_table(config.max_context, config.head_dim, config.rope_theta, config.rope_scaling),
    }
    if config.attention_bias:
        bias = vectors(*(f"{name}.bias" for name in qkv))
        arrays["qkv_bias"] = np.pad(bias, ((0, 0), (0, padded(bias.shape[1]) - bias.shape[1])))
    if config.head_norms:
        arrays |= {name: vectors(f"self_attn.{name}.weight") for name in ("q_norm", "k_norm")}
    return arrays


def _aligned(nbytes: int) -> npt.NDArray[np.uint8]:
    """Zeroed bytes that start on a cache line."""
    block = np.zeros(nbytes + 64, np.uint8)
    return block[-block.ctypes.data % 64 :][:nbytes]


@kernel
def _fault(
    vocab_size, context, slots, page_size, token_ids, positions, write_slots, page_lines, prefix_lengths,
    ancestor_slots, num_ancestors, page_table, logit_rows,
):  # fmt: skip
    rows, width = len(token_ids), ancestor_slots.shape[1]
    if not (
        len(positions) == rows and len(write_slots) == rows and len(page_lines) == rows
        and len(prefix_lengths) == rows and len(ancestor_slots) == rows and len(num_ancestors) == rows
    ):  # fmt: skip
        return 1
    for row in range(rows):
        prefix, ancestors = prefix_lengths[row], num_ancestors[row]
        if not 0 <= token_ids[row] < vocab_size:
            return 2
        if not 0 <= positions[row] < context:
            return 3
        if not 0 <= write_slots[row] < slots:
            return 4
        if not 0 <= page_lines[row] < len(page_table):
            return 5
        if prefix < 0 or ancestors < 0 or prefix + ancestors != positions[row] + 1:
            return 6
        if ancestors > width:
            return 7
        pages = (prefix + page_size - 1) // page_size
        if pages > page_table.shape[1]:
            return 8
        for page in page_table[page_lines[row], :pages]:
            if not 0 <= page < slots // page_size:
                return 8
        for slot in ancestor_slots[row, :ancestors]:
            if not 0 <= slot < slots:
                return 9
    for row in logit_rows:
        if not 0 <= row < rows:
            return 10
    return 0


@kernel
def _bind(
    args, board, keys, values, page_size, vocab_size, context, token_ids, positions, write_slots, page_lines,
    prefix_lengths, ancestor_slots, num_ancestors, page_table, logit_rows, logits,
):  # fmt: skip
    """Check a batch and write it into the job's arguments; returns an index into `_FAULTS`."""
    fault = _fault(
        vocab_size, context, keys.shape[2], page_size, token_ids, positions, write_slots, page_lines, prefix_lengths,
        ancestor_slots, num_ancestors, page_table, logit_rows,
    )  # fmt: skip
    if fault:
        return fault
    board[:] = 0
    a = args[0]
    a.board = address_u8(board)
    a.keys, a.values, a.num_slots, a.page_size = address_f32(keys), address_f32(values), keys.shape[2], page_size
    a.rows, a.token_ids, a.positions = len(token_ids), address_i32(token_ids), address_i32(positions)
    a.write_slots, a.page_lines = address_i32(write_slots), address_i32(page_lines)
    a.prefix_lengths, a.num_ancestors = address_i32(prefix_lengths), address_i32(num_ancestors)
    a.ancestor_slots, a.ancestor_width = address_i32(ancestor_slots), ancestor_slots.shape[1]
    a.page_table, a.pages = address_i32(page_table), page_table.shape[1]
    a.logit_rows, a.num_logit_rows, a.logits = address_i32(logit_rows), len(logit_rows), address_f32(logits)
    return 0
