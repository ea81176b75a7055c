"""Room for one pass, shared by all buckets: passes follow one another, and each uses the start of every buffer."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import prod

import torch

from slipstream_kernels.models.gpu.batch.buckets import Bucket
from slipstream_kernels.models.gpu.batch.limits import GpuLimits
from slipstream_kernels.models.gpu.graph.expert_buffers import ExpertBuffers, expert_shapes, is_of_experts
from slipstream_kernels.models.gpu.ranks.shard import Shard
from slipstream_kernels.ops.gpu.attention_state import AttentionPartials, attention_partials
from slipstream_kernels.ops.gpu.fp8_linear.fp8_ops import CodeRoom
from slipstream_kernels.ops.gpu.position_splits import num_splits
from slipstream_kernels.ops.gpu.prefix_attention import PREFIX_COLUMNS
from slipstream_kernels.ops.gpu.sampling import SamplingWorkspace, sampling_workspace
from slipstream_kernels.ops.gpu.tree_walk import RESULT_WIDTH
from slipstream_kernels.token_tree import MAX_ROWS


@dataclass(frozen=True, slots=True)
class PassBuffers:
    """Tensors of a pass over `rows` rows with `logits` rows of logits, bfloat16 unless said otherwise."""

    x: torch.Tensor
    """[rows, hidden], the residual stream"""
    normed: torch.Tensor
    """[rows, hidden]"""
    qkv: torch.Tensor
    """[rows, q + 2 kv]"""
    q: torch.Tensor
    """[rows, heads, head_dim], rotated"""
    attended: torch.Tensor
    """[rows, heads, head_dim]"""
    gate_up: torch.Tensor
    """[rows, 2 intermediate] in the order of ops/gpu/gate_up.py, where a gate is not applied to the sums at once; in
    float32, as the sums are, where that is for the sake of adapters"""
    branch: torch.Tensor
    """[rows, hidden], what a layer adds to the residual stream, where it is not added at once"""
    activated: torch.Tensor
    """[rows, intermediate]"""
    shared: torch.Tensor
    """float32 [rows, hidden], what an expert says that computes every row; nothing where there is none"""
    resolved_ids: torch.Tensor
    """int32 [rows]"""
    paths: torch.Tensor
    """int32 [rows, MAX_ROWS]"""
    depths: torch.Tensor
    """int32 [rows]; all 0 for buckets without trees"""
    leaves: torch.Tensor
    """int32 [rows], for buckets with trees and of tiles only"""
    head_in: torch.Tensor
    """[logits, hidden]"""
    logits: torch.Tensor
    """float32 [logits, vocab]"""
    sampled: torch.Tensor
    """int32 [logits]"""
    result: torch.Tensor
    """int32 [items, RESULT_WIDTH]"""
    states: torch.Tensor
    """[rows, boundaries * hidden], what entered the bucket's boundaries, side by side"""
    part: torch.Tensor
    """float32 [rows, hidden], this rank's part of a layer's output; nothing where there is one rank"""
    parts: torch.Tensor
    """float32 [ranks, rows, hidden]"""
    logits_part: torch.Tensor
    """float32 [logits, vocab of the shard]"""
    logits_parts: torch.Tensor
    """float32 [ranks, logits, vocab of the shard]"""
    partials: AttentionPartials
    """of the pass's first rows, as many as may decode"""
    workspace: SamplingWorkspace
    columns: int
    """of `prefix_attention`"""
    experts: ExpertBuffers | None
    """None: the model has no experts"""

    def activated_of(self, width: int) -> torch.Tensor:
        """[rows, width] at the start of `activated`, contiguous: of a layer that may be narrower than others."""
        rows = len(self.activated)
        return self.activated.view(-1)[: rows * width].view(rows, width)

    def gate_up_of(self, width: int) -> torch.Tensor:
        """[rows, width] at the start of `gate_up`, as `activated_of`."""
        rows = len(self.gate_up)
        return self.gate_up.view(-1)[: rows * width].view(rows, width)


class BufferPool:
    """Allocates for the largest pass; `of` a bucket are views that start where the largest pass's buffers do."""

    def __init__(self, shard: Shard, limits: GpuLimits, device: torch.device | str, *, library: bool = False) -> None:
        """`library` adds what a vendor's library needs for gated layers."""
        self._shard = shard
        self._limits = limits
        boundaries = tuple(range(limits.boundaries))
        most = Bucket(limits.max_rows, limits.max_decode_rows, has_trees=True, has_prefill=True, boundaries=boundaries)
        self._storage = {
            name: torch.empty(prod(shape), dtype=dtype, device=device)
            for name, (shape, dtype) in self._shapes(most).items()
        }
        self._buffers: dict[Bucket, PassBuffers] = {}
        size = limits.max_rows * 2 * shard.widest_intermediate if library else 0
        self.gate_up = torch.empty(size, dtype=torch.bfloat16, device=device)
        """both halves of a gated layer; nothing unless `library`"""
        self.code_room = _code_room(shard, limits.max_rows, device)
        """None: no layer takes activations of 8 bits"""
        self._no_depths = torch.zeros(limits.max_rows, dtype=torch.int32, device=device)
        vocab, head_dim = shard.config.vocab_size, shard.config.head_dim
        splits = num_splits(limits.max_context)
        self._workspace = sampling_workspace(limits.max_decode_rows, vocab, torch.device(device))
        self._partials = attention_partials(limits.max_decode_rows, shard.heads, splits, head_dim, device)

    @property
    def nbytes(self) -> dict[str, int]:
        """Bytes of the attention's partial states, of logits and what is made of them, and of all else."""
        partials = _bytes_of(self._partials)
        logits = _bytes_of(self._workspace)
        logits += sum(tensor.nbytes for name, tensor in self._storage.items() if name.startswith("logits"))
        total = partials + _bytes_of(self._workspace) + self._no_depths.nbytes + self.gate_up.nbytes
        total += sum(tensor.nbytes for tensor in self._storage.values())
        total += 0 if self.code_room is None else self.code_room.nbytes
        return {"partials": partials, "logits": logits, "activations": total - partials - logits}

    @property
    def results(self) -> torch.Tensor:
        """int32 [requests, RESULT_WIDTH], those of the last pass."""
        return self._storage["result"].view(-1, RESULT_WIDTH)

    @property
    def awake(self) -> tuple[int, ...]:
        """The shape of the counts of experts that a pass wakes, [layers with experts, parts]; none of other models."""
        shapes = expert_shapes(self._shard, 1)
        return shapes["expert_awake"][0] if shapes else (0, 0)

    def of(self, bucket: Bucket) -> PassBuffers:
        """The buffers of a bucket's passes."""
        if bucket not in self._buffers:
            self._buffers[bucket] = self._views(bucket)
        return self._buffers[bucket]

    def drop_states(self) -> None:
        """Forget the buffers of buckets that keep states; passes under way may still use them."""
        self._buffers = {bucket: buffers for bucket, buffers in self._buffers.items() if not bucket.boundaries}

    def _views(self, bucket: Bucket) -> PassBuffers:
        views = {
            name: self._storage[name][: prod(shape)].view(shape) for name, (shape, _) in self._shapes(bucket).items()
        }
        if not bucket.has_trees:
            views["depths"] = self._no_depths[: bucket.rows]
        rows = min(bucket.rows, self._limits.max_decode_rows)
        states = self._partials
        has_experts = self._shard.config.form.experts is not None
        return PassBuffers(
            **{name: view for name, view in views.items() if not is_of_experts(name)},
            experts=ExpertBuffers.of(self._shard, bucket.rows, views) if has_experts else None,
            partials=AttentionPartials(states.m[:rows], states.l[:rows], states.o[:rows]),
            workspace=self._workspace,
            columns=PREFIX_COLUMNS,
        )

    def _shapes(self, bucket: Bucket) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        shard, config = self._shard, self._shard.config
        rows, logits, hidden = bucket.rows, bucket.logits, config.hidden_size
        ranks = shard.size if shard.size > 1 else 0
        part_rows, part_logits = (rows, logits) if ranks else (0, 0)
        form = config.form
        rounds = form.mlp_bias or form.activation != "silu"
        gated_rows = rows if rounds or self._limits.max_adapters else 0
        branch_rows = rows if form.branch_norms or (ranks and (form.output_bias or form.mlp_bias)) else 0
        shared_rows = rows if form.experts is not None and form.experts.shared_size else 0
        heads = (rows, shard.heads, config.head_dim)
        bf16, f32, i32 = torch.bfloat16, torch.float32, torch.int32
        return {
            "x": ((rows, hidden), bf16),
            "normed": ((rows, hidden), bf16),
            "qkv": ((rows, shard.qkv_size), bf16),
            "q": (heads, bf16),
            "attended": (heads, bf16),
            "gate_up": ((gated_rows, 2 * shard.widest_intermediate), bf16 if rounds else f32),
            "branch": ((branch_rows, hidden), bf16),
            "activated": ((rows, shard.widest_intermediate), bf16),
            "shared": ((shared_rows, hidden), f32),
            "resolved_ids": ((rows,), i32),
            "paths": ((rows, MAX_ROWS), i32),
            "depths": ((rows,), i32),
            "leaves": ((rows,), i32),
            "head_in": ((logits, hidden), bf16),
            "logits": ((logits, config.vocab_size), f32),
            "sampled": ((logits,), i32),
            "result": ((min(logits, self._limits.max_running), RESULT_WIDTH), i32),
            "states": ((rows, len(bucket.boundaries) * hidden), bf16),
            "part": ((part_rows, hidden), f32),
            "parts": ((ranks, part_rows, hidden), f32),
            "logits_part": ((part_logits, shard.vocab_size), f32),
            "logits_parts": ((ranks, part_logits, shard.vocab_size), f32),
            **expert_shapes(shard, rows),
        }


def _code_room(shard: Shard, rows: int, device: torch.device | str) -> CodeRoom | None:
    quantisation = shard.config.quantisation
    if quantisation is None or not quantisation.fp8_activations:
        return None
    return CodeRoom.empty(rows, max(shard.config.hidden_size, shard.q_size, shard.widest_intermediate), device)


def _bytes_of(record: AttentionPartials | SamplingWorkspace) -> int:
    return sum(getattr(record, entry.name).nbytes for entry in fields(record))
