"""The passes of a causal language model that drafts."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch

from slipstream_kernels.models.gpu.draft.networks.draft_forward import DraftShape, DraftSizes, PassRows
from slipstream_kernels.models.gpu.draft.networks.draft_ops import DraftOps
from slipstream_kernels.models.gpu.forward.weights import GpuWeights, LayerWeights
from slipstream_kernels.ops.gpu.packed.packed_weight import PackedWeight


@dataclass(frozen=True, slots=True)
class _Buffers:
    """bfloat16 unless said otherwise, for the largest pass; each pass uses the first rows."""

    x: torch.Tensor
    """[rows, hidden], the residual stream"""
    normed: torch.Tensor
    """[rows, hidden]"""
    qkv: torch.Tensor
    q: torch.Tensor
    attended: torch.Tensor
    """[rows, heads, head_dim]"""
    activated: torch.Tensor
    roots: torch.Tensor
    """[sessions, hidden], the residual stream of each session's last row of text, after the final norm"""
    last_attended: torch.Tensor
    """[sessions, heads * head_dim]"""
    resolved_ids: torch.Tensor
    """int32 [rows]"""
    lines: torch.Tensor
    """int32 [rows], of zeros: `embed` asks for it, as it can take tokens from elsewhere"""


class CausalForward:
    """A `DraftForward`: queues the ops of a model's passes on the current stream."""

    def __init__(
        self, weights: GpuWeights, ops: DraftOps, below: int | None = None, ids: torch.Tensor | None = None
    ) -> None:
        """Only tokens below `below` are scored, by default all; of these only `ids`, int64 [tokens], where given.

        The rows that score `ids` are copied; the weights keep the others.
        """
        assert weights.shard.size == 1
        self.weights = weights
        self._config = config = weights.shard.config
        if ids is not None:
            ids = (ids if below is None else ids[ids < below]).to(weights.head.device)
        scored = slice(below) if ids is None else ids
        self._head = weights.head.rows(scored) if isinstance(weights.head, PackedWeight) else weights.head[scored]
        self._ids = None if ids is None else ids.to(torch.int32)
        self._ops = ops
        self.shape = DraftShape(
            layers=config.num_layers,
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            hidden=config.hidden_size,
            entries=len(self._head),
            features=0,
            shift=1,
        )
        self._buffers: _Buffers | None = None

    @property
    def device(self) -> torch.device:
        return self._head.device

    @property
    def vocabulary(self) -> torch.Tensor | None:
        return self._ids

    @property
    def nbytes(self) -> int:
        return self.weights.nbytes + (0 if self._ids is None else self._ids.nbytes + self._head.nbytes)

    @property
    def pass_bytes(self) -> int:
        layers = sum(m.nbytes for w in self.weights.layers for m in (w.qkv, w.o, w.gate_up, w.down))
        return layers + self._head.nbytes

    def activation_bytes(self, sizes: DraftSizes) -> int:
        return sum(prod(shape) * dtype.itemsize for shape, dtype in self._sizes(sizes).values())

    def allocate(self, sizes: DraftSizes) -> None:
        self._buffers = _Buffers(
            **{
                name: torch.zeros(shape, dtype=dtype, device=self.device)
                for name, (shape, dtype) in self._sizes(sizes).items()
            }
        )

    def text(self, rows: PassRows, features: torch.Tensor | None, last_rows: torch.Tensor) -> None:
        assert features is None
        self._compute(rows, last_rows)
        if len(last_rows):
            roots = self._allocated.roots[: len(last_rows)]
            self._ops.layers.rms_norm(roots, self.weights.final_norm, roots, self._config.rms_norm_eps)

    def nodes(self, depth: int, rows: PassRows, parent_rows: torch.Tensor) -> None:
        self._compute(rows)

    def score(self, depth: int, logits: torch.Tensor) -> None:
        b, n = self._allocated, len(logits)
        states = b.roots[:n]
        if depth:
            states = b.normed[:n]
            self._ops.layers.rms_norm(b.x[:n], self.weights.final_norm, states, self._config.rms_norm_eps)
        self._ops.layers.linear(states, self._head, logits)

    def _compute(self, rows: PassRows, last_rows: torch.Tensor | None = None) -> None:
        """The residual stream of rows, from their tokens and the keys and values of those before them.

        Of text `roots` gets that of `last_rows` alone: of the others nothing is read but keys and values.
        """
        b, n = self._allocated, len(rows.token_ids)
        x = b.x[:n]
        # No token is -1, so the tokens of lines are not looked at.
        self._ops.layers.embed(rows.token_ids, b.lines[:n], b.lines, self.weights.embedding, x, b.resolved_ids[:n])
        for index, layer in enumerate(self.weights.layers):
            last = index == len(self.weights.layers) - 1
            self._layer(rows, index, layer, x, last_rows if last else None)

    def _layer(
        self, rows: PassRows, index: int, layer: LayerWeights, x: torch.Tensor, wanted: torch.Tensor | None
    ) -> None:
        """Compute a layer in `x`, the residual stream, or its rest in `roots` for the rows that are `wanted`."""
        b, ops, eps, n = self._allocated, self._ops.layers, self._config.rms_norm_eps, len(x)
        normed, qkv, q, attended = b.normed[:n], b.qkv[:n], b.q[:n], b.attended[:n]
        ops.rms_norm(x, layer.input_norm, normed, eps)
        ops.linear(normed, layer.qkv, qkv, bias=layer.qkv_bias)
        ops.rotary_write(
            qkv,
            rows.positions,
            rows.write_slots,
            rows.rotary,
            q,
            rows.kv.keys[index],
            rows.kv.values[index],
            q_norm=layer.q_norm,
            k_norm=layer.k_norm,
            eps=eps,
        )
        outputs = attended.flatten(1)
        if wanted is None:
            rows.attend(index, q, attended)
        else:
            n = len(wanted)
            if n == 0:
                return
            stream, x, outputs, normed = x, b.roots[:n], b.last_attended[:n], b.normed[:n]
            rows.attend(index, q, attended, wanted)
            self._ops.gather_norm(attended.flatten(1), wanted, None, outputs, 0.0)
            self._ops.gather_norm(stream, wanted, None, x, 0.0)
        activated = b.activated[:n]
        ops.linear(outputs, layer.o, x, residual=x)
        ops.rms_norm(x, layer.post_norm, normed, eps)
        ops.gated_linear(normed, layer.gate_up, activated)
        ops.linear(activated, layer.down, x, residual=x)

    @property
    def _allocated(self) -> _Buffers:
        assert self._buffers is not None
        return self._buffers

    def _sizes(self, sizes: DraftSizes) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        config, shard = self._config, self.weights.shard
        rows, hidden = max(sizes.text_rows, sizes.node_rows), config.hidden_size
        heads = (rows, config.num_heads, config.head_dim)
        bf16, i32 = torch.bfloat16, torch.int32
        return {
            "x": ((rows, hidden), bf16),
            "normed": ((rows, hidden), bf16),
            "qkv": ((rows, shard.qkv_size), bf16),
            "q": (heads, bf16),
            "attended": (heads, bf16),
            "activated": ((rows, config.intermediate_size), bf16),
            "roots": ((sizes.sessions, hidden), bf16),
            "last_attended": ((sizes.sessions, config.num_heads * config.head_dim), bf16),
            "resolved_ids": ((rows,), i32),
            "lines": ((rows,), i32),
        }
