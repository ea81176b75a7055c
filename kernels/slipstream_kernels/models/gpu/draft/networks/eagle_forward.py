"""What EAGLE heads compute, on the device: EAGLE-1 (arXiv 2401.15077), EAGLE-3 (arXiv 2503.01840), single MTP layers.

Row i takes a state of position i and the embedding of token i + 1, and scores token i + 2. A row of the text takes the
target's state; a node takes the state that its parent's row left.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch

from slipstream_kernels.models.gpu.draft.networks.draft_forward import DraftShape, DraftSizes, PassRows
from slipstream_kernels.models.gpu.draft.networks.draft_ops import DraftOps
from slipstream_kernels.models.gpu.draft.networks.eagle_weights import EagleWeights, HeadLayerWeights


@dataclass(frozen=True, slots=True)
class _Buffers:
    """bfloat16, for the largest pass; each pass uses the first rows."""

    features: torch.Tensor
    """[text rows, states * target hidden], normalised; nothing unless there are norms"""
    fused: torch.Tensor
    """[text rows, hidden], the target's states after fc; nothing unless `fused`"""
    joined: torch.Tensor
    """[rows, embedding and state side by side]"""
    normed: torch.Tensor
    qkv: torch.Tensor
    q: torch.Tensor
    attended: torch.Tensor
    """[rows, heads, head_dim]"""
    activated: torch.Tensor
    texts: torch.Tensor
    """[text rows, hidden], the residual stream of rows of text"""
    roots: torch.Tensor
    """[sessions, hidden], what each session's last row of text left"""
    last_attended: torch.Tensor
    """[sessions, heads * head_dim]"""
    even: torch.Tensor
    odd: torch.Tensor
    """[node rows, hidden], what nodes of even and of odd depths left"""


class EagleForward:
    """A `DraftForward`: queues the ops of a head's passes on the current stream."""

    def __init__(self, weights: EagleWeights, ops: DraftOps) -> None:
        self.weights = weights
        self._ops = ops
        hidden = weights.embedding.shape[1]
        states = weights.fc.shape[1] if weights.fused else weights.fc.shape[1] - hidden
        self.shape = DraftShape(
            layers=len(weights.layers),
            heads=weights.heads,
            kv_heads=weights.kv_heads,
            head_dim=weights.head_dim,
            hidden=hidden,
            entries=len(weights.head),
            features=states,
            shift=2,
        )
        self._buffers: _Buffers | None = None

    @property
    def device(self) -> torch.device:
        return self.weights.head.device

    @property
    def vocabulary(self) -> torch.Tensor | None:
        return self.weights.ids

    @property
    def nbytes(self) -> int:
        return self.weights.nbytes

    @property
    def pass_bytes(self) -> int:
        return self.weights.pass_bytes

    def activation_bytes(self, sizes: DraftSizes) -> int:
        return sum(2 * prod(size) for size in self._sizes(sizes).values())

    def allocate(self, sizes: DraftSizes) -> None:
        self._buffers = _Buffers(
            **{
                name: torch.zeros(size, dtype=torch.bfloat16, device=self.device)
                for name, size in self._sizes(sizes).items()
            }
        )

    def text(self, rows: PassRows, features: torch.Tensor | None, last_rows: torch.Tensor) -> None:
        assert features is not None
        b = self._allocated
        states = self._fused(features) if self.weights.fused else features
        self._compute(rows, states, None, b.texts[: len(rows.token_ids)], last_rows)

    def nodes(self, depth: int, rows: PassRows, parent_rows: torch.Tensor) -> None:
        self._compute(rows, self._left(depth - 1), parent_rows, self._left(depth)[: len(rows.token_ids)])

    def score(self, depth: int, logits: torch.Tensor) -> None:
        w, b = self.weights, self._allocated
        states = self._left(depth)[: len(logits)]
        if w.final_norm is not None and not w.post_norm:
            states, source = b.normed[: len(logits)], states
            self._ops.layers.rms_norm(source, w.final_norm, states, w.eps)
        self._ops.layers.linear(states, w.head, logits)

    def _left(self, depth: int) -> torch.Tensor:
        """What the rows of a depth left to their children."""
        b = self._allocated
        return b.roots if depth == 0 else b.odd if depth % 2 else b.even

    def _fused(self, features: torch.Tensor) -> torch.Tensor:
        """The target's states as rows of text take them, after the norms in front of fc."""
        w, b, ops = self.weights, self._allocated, self._ops
        normed = b.features[: len(features)]
        if w.fc_norms:
            parts = features.chunk(w.num_states, dim=1), normed.chunk(w.num_states, dim=1)
            for norm, source, target in zip(w.fc_norms, *parts, strict=True):
                ops.gather_norm(source, None, norm, target, w.eps)
        elif w.input_norm is not None:
            ops.gather_norm(features, None, w.input_norm, normed, w.eps)
        else:
            normed = features
        fused = b.fused[: len(features)]
        ops.layers.linear(normed, w.fc, fused, bias=w.fc_bias)
        return fused

    def _compute(
        self,
        rows: PassRows,
        states: torch.Tensor,
        state_rows: torch.Tensor | None,
        x: torch.Tensor,
        last_rows: torch.Tensor | None = None,
    ) -> None:
        """Rows from their tokens and `states`; `x` is the residual stream, and gets what the rows leave.

        Of text `roots` gets it, for `last_rows` alone: of the others nothing is read but keys and values.
        """
        w, b, layers = self.weights, self._allocated, self._ops.layers
        n = len(x)
        joined, normed = b.joined[:n], b.normed[:n]
        self._ops.join_rows(
            rows.token_ids,
            w.embedding,
            w.embedding_norm,
            states,
            state_rows,
            w.state_norm,
            w.eps,
            joined,
            x if w.fused else None,
            residual_normed=w.residual_normed,
        )
        if not w.fused:
            layers.linear(joined, w.fc, x, bias=w.fc_bias)
        for index, layer in enumerate(w.layers):
            attention_input = joined if w.fused and index == 0 else x
            if layer.input_norm is not None:
                layers.rms_norm(x, layer.input_norm, normed, w.eps)
                attention_input = normed
            last = index == len(w.layers) - 1
            x = self._layer(rows, index, layer, attention_input, x, last_rows if last else None)
        if len(x) and w.post_norm and w.final_norm is not None:
            layers.rms_norm(x, w.final_norm, x, w.eps)

    def _layer(
        self,
        rows: PassRows,
        index: int,
        layer: HeadLayerWeights,
        attention_input: torch.Tensor,
        x: torch.Tensor,
        wanted: torch.Tensor | None,
    ) -> torch.Tensor:
        """Compute a layer in `x`, the residual stream; returns it, or `roots` with that of the rows `wanted`."""
        w, b, ops = self.weights, self._allocated, self._ops.layers
        n = len(x)
        qkv, q, attended = b.qkv[:n], b.q[:n], b.attended[:n]
        ops.linear(attention_input, layer.qkv, qkv, bias=layer.qkv_bias)
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
            eps=w.eps,
        )
        outputs = attended.flatten(1)
        if wanted is None:
            rows.attend(index, q, attended)
        else:
            n = len(wanted)
            stream, x, outputs = x, b.roots[:n], b.last_attended[:n]
            if n == 0:
                return x
            rows.attend(index, q, attended, wanted)
            self._ops.gather_norm(attended.flatten(1), wanted, None, outputs, 0.0)
            self._ops.gather_norm(stream, wanted, None, x, 0.0)
        normed, activated = b.normed[:n], b.activated[:n]
        ops.linear(outputs, layer.o, x, residual=x)
        ops.rms_norm(x, layer.post_norm, normed, w.eps)
        ops.gated_linear(normed, layer.gate_up, activated)
        ops.linear(activated, layer.down, x, residual=x)
        return x

    @property
    def _allocated(self) -> _Buffers:
        assert self._buffers is not None
        return self._buffers

    def _sizes(self, sizes: DraftSizes) -> dict[str, tuple[int, ...]]:
        w, shape = self.weights, self.shape
        rows = max(sizes.text_rows, sizes.node_rows)
        normed = bool(w.fc_norms) or w.input_norm is not None
        heads = (rows, shape.heads, shape.head_dim)
        joined = shape.hidden + (shape.hidden if w.fused else shape.features)
        return {
            "features": (sizes.text_rows if normed else 0, shape.features),
            "fused": (sizes.text_rows if w.fused else 0, shape.hidden),
            "joined": (rows, joined),
            "normed": (rows, shape.hidden),
            "qkv": (rows, (shape.heads + 2 * shape.kv_heads) * shape.head_dim),
            "q": heads,
            "attended": heads,
            "activated": (rows, w.layers[0].down.shape[1]),
            "texts": (sizes.text_rows, shape.hidden),
            "roots": (sizes.sessions, shape.hidden),
            "last_attended": (sizes.sessions, shape.heads * shape.head_dim),
            "even": (sizes.node_rows, shape.hidden),
            "odd": (sizes.node_rows, shape.hidden),
        }
