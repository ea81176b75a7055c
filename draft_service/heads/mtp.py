"""What MTP layers compute, which a model was trained with to predict further tokens.

DeepSeek-V3 (arXiv 2412.19437, section 2.2) chains D of them: layer k takes the output of layer k - 1 at a position, the
target's state where k is 0, and the embedding of the token k + 1 further on, and scores the token after that one. MiMo
(arXiv 2505.07608) has one layer of the same kind.

Here layer k computes a position when its token comes: the row of token i holds, for each layer k, that of the state
i - 1 - k, whose lower layers the rows before have computed. So all layers have rows of the same tokens, and a node at
depth d of a tree scores its children by layer d mod D. For d < D that is exactly what is published; beyond, layer 0
takes what the parent's scores came from in place of the target's state, as it does wherever the target's is not there.
Rotary positions are those of the row in every layer: layer k's differ by k from the published ones, and only
differences count. The embedding at position 0, which some engines set to zero, is left as training had it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.nn import functional

from draft_service.heads.config import HeadConfig
from draft_service.heads.eagle import EagleHead, HeadRows, Vocabulary
from draft_service.heads.layer import HeadCache, RowSegment


class MtpCache(HeadCache):
    """`outputs` keeps, for all layers but the last, what each row leaves to the next layer."""

    __slots__ = ("outputs",)

    def __init__(self, config: HeadConfig) -> None:
        super().__init__(config)
        self.outputs = torch.empty(config.num_layers - 1, 0, config.hidden_size)

    def reserve(self, rows: int) -> None:
        super().reserve(rows)
        more = self.keys.shape[2] - self.outputs.shape[1]
        self.outputs = functional.pad(self.outputs, (0, 0, 0, more))


class MtpHead(EagleHead):
    """MTP layers; each joins embedding and state, both normalised, and is a decoder layer with a norm behind it.

    post_norm: a layer leaves its state after that norm, as MiMo's does, else before.
    """

    family = "mtp"
    num_states = 1

    def __init__(
        self, config: HeadConfig, tensors: Mapping[str, torch.Tensor], vocabulary: Vocabulary, *, post_norm: bool
    ) -> None:
        super().__init__(config, tensors, vocabulary)
        self.post_norm = post_norm

    def new_cache(self) -> HeadCache:
        return MtpCache(self.config)

    def fuse(self, states: torch.Tensor) -> torch.Tensor:
        return states

    def _outputs(self, embedded: torch.Tensor, rows: HeadRows, rotary: torch.Tensor) -> torch.Tensor:
        last, scored = len(self._layers) - 1, rows.depth % len(self._layers)
        states, segments, result = rows.states, rows.segments, rows.states
        for index, layer in enumerate(self._layers):
            if index:
                states, segments = _parents_outputs(index, rows.segments), _with_published_rows(index, rows.segments)
            joined = torch.cat([layer.norm("enorm", embedded), layer.norm("hnorm", states)], dim=-1)
            x = functional.linear(joined, self._weights[f"layers.{index}.eh_proj.weight"])
            x = layer.forward(layer.norm("input_layernorm", x), x, rotary, segments)
            x = layer.norm("final_norm", x) if self.post_norm else x
            if index < last:
                _keep(index, x, rows.segments)
            if index == scored:
                result = x
        return result

    def _scored(self, states: torch.Tensor, depth: int) -> torch.Tensor:
        layer = self._layers[depth % len(self._layers)]
        return states if self.post_norm else layer.norm("final_norm", states)


def _keep(index: int, outputs: torch.Tensor, segments: Sequence[RowSegment]) -> None:
    """Note what layer `index` made of the segments' rows, float32 [rows, hidden]."""
    first = 0
    for segment in segments:
        assert isinstance(segment.cache, MtpCache)
        end = first + len(segment)
        segment.cache.outputs[index, segment.begin : segment.begin + len(segment)] = outputs[first:end]
        first = end


def _parents_outputs(index: int, segments: Sequence[RowSegment]) -> torch.Tensor:
    """What layer `index` - 1 made of each row's parent: the last row before its own that it attends to."""
    states = []
    for segment in segments:
        assert isinstance(segment.cache, MtpCache)
        columns = torch.arange(segment.mask.shape[1])
        parents = torch.where(segment.mask & ~_own(segment), columns, -1).amax(dim=1)
        # A text's first row has no parent; what stands in is in no published row.
        states.append(segment.cache.outputs[index - 1, parents.clamp(min=0)])
    return torch.cat(states)


def _with_published_rows(index: int, segments: Sequence[RowSegment]) -> list[RowSegment]:
    """The segments, without the first `index` rows of their texts, which layer `index` has no states for.

    A row always attends to itself.
    """
    return [
        RowSegment(
            segment.cache,
            segment.begin,
            (segment.mask & (torch.arange(segment.mask.shape[1]) >= index)) | _own(segment),
        )
        for segment in segments
    ]


def _own(segment: RowSegment) -> torch.Tensor:
    """bool, as the mask: each row's own column."""
    return torch.arange(segment.mask.shape[1]) == segment.begin + torch.arange(len(segment))[:, None]
