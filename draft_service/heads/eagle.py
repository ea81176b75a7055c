"""What EAGLE heads compute: EAGLE-1 (arXiv 2401.15077), whose weights EAGLE-2 uses, and EAGLE-3 (arXiv 2503.01840).

Row i takes a state of position i and the embedding of token i + 1, and scores token i + 2. A row of the text takes the
target's state (`fuse`d); a row of a tree takes the state that its parent's row left.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch.nn import functional

from draft_service.heads.config import HeadConfig
from draft_service.heads.layer import DecoderLayer, HeadCache, RowSegment, rms_norm, rotary_rows
from draft_service.heads.vocabulary import spread


@dataclass(frozen=True, slots=True)
class HeadRows:
    """Rows of one pass, the segments one after the other.

    token_ids: int64 [rows], of the target's vocabulary. states: float32 [rows, hidden]. positions: int64 [rows], those
    of the states. depth: levels of all rows below the text; 0: they are rows of the text.
    """

    token_ids: torch.Tensor
    states: torch.Tensor
    positions: torch.Tensor
    segments: Sequence[RowSegment]
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The rows that embed and score tokens.

    embedding: [target_size, hidden]. head: [entries, hidden]. Both are float32 where they compute. ids: the target's id
    of each entry, None where entry and id are the same.
    """

    embedding: torch.Tensor
    head: torch.Tensor
    ids: torch.Tensor | None
    target_size: int

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """float32 [rows, target_size]; minus infinity for tokens that the head does not score."""
        return spread(functional.linear(x, self.head), self.ids, self.target_size)


class EagleHead(ABC):
    """A head that drafts row by row, on the CPU, in float32. Not to be called from two threads at once."""

    family: Literal["eagle", "eagle3", "mtp"]
    num_states: int
    """How many boundaries' states it reads."""

    def __init__(self, config: HeadConfig, tensors: Mapping[str, torch.Tensor], vocabulary: Vocabulary) -> None:
        """`tensors`: by canonical names, checked; float32, or nothing is computed before `widen`."""
        self.config = config
        self._take(tensors, vocabulary)

    def widen(self) -> None:
        """Hold all weights in float32 from now on, as rows are computed in."""
        rows = self.vocabulary
        embedding = rows.embedding.float()
        head = embedding if rows.head is rows.embedding else rows.head.float()
        tensors = {name: tensor.float() for name, tensor in self._weights.items()}
        self._take(tensors, replace(rows, embedding=embedding, head=head))

    def _take(self, tensors: Mapping[str, torch.Tensor], vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._weights = tensors
        layers = range(self.config.num_layers)
        self._layers = [DecoderLayer(self.config, index, tensors) for index in layers]

    @property
    def weights(self) -> Mapping[str, torch.Tensor]:
        """By canonical names, without what the vocabulary holds."""
        return self._weights

    def new_cache(self) -> HeadCache:
        """An empty cache of this head's shape."""
        return HeadCache(self.config)

    @abstractmethod
    def fuse(self, states: torch.Tensor) -> torch.Tensor:
        """The target's states, float32 [rows, num_states * target_hidden_size], as rows of the text take them."""

    def forward(self, rows: HeadRows) -> torch.Tensor:
        """The rows' states for their children, float32 [rows, hidden]; their keys and values go into the caches."""
        with torch.inference_mode():
            for segment in rows.segments:
                segment.cache.reserve(segment.begin + len(segment))
            rotary = rotary_rows(self.config, rows.positions)
            embedded = functional.embedding(rows.token_ids, self.vocabulary.embedding)
            return self._outputs(embedded, rows, rotary)

    def logits(self, states: torch.Tensor, depth: int = 0) -> torch.Tensor:
        """Scores of the next token from states that `forward` gave at `depth`, float32 [rows, target vocabulary]."""
        with torch.inference_mode():
            return self.vocabulary.logits(self._scored(states, depth))

    @abstractmethod
    def _outputs(self, embedded: torch.Tensor, rows: HeadRows, rotary: torch.Tensor) -> torch.Tensor:
        """What `forward` returns. embedded: float32 [rows, hidden], of the rows' tokens. rotary: [rows, head_dim]."""

    @abstractmethod
    def _scored(self, states: torch.Tensor, depth: int) -> torch.Tensor:
        """What the vocabulary scores, from states that `forward` gave at `depth`."""


class _StackedHead(EagleHead):
    """A head whose layers stand one above the other, the same at every depth."""

    def _outputs(self, embedded: torch.Tensor, rows: HeadRows, rotary: torch.Tensor) -> torch.Tensor:
        x = self._first_layer(embedded, rows.states, rotary, rows.segments)
        for layer in self._layers[1:]:
            x = layer.forward(layer.norm("input_layernorm", x), x, rotary, rows.segments)
        return self._feedback(x)

    @abstractmethod
    def _first_layer(
        self, embedded: torch.Tensor, states: torch.Tensor, rotary: torch.Tensor, segments: Sequence[RowSegment]
    ) -> torch.Tensor: ...

    def _feedback(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def _scored(self, states: torch.Tensor, depth: int) -> torch.Tensor:
        return self._norm("norm", states)

    def _norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """`x` after the norm of that name, as it is where the head has none."""
        weight = self._weights.get(f"{name}.weight")
        return x if weight is None else rms_norm(x, weight, self.config.rms_norm_eps)


class Eagle1(_StackedHead):
    """fc joins embedding and state; the first layer, as a rule, normalises nothing before its attention.

    Variants, by the tensors there: bias of fc; norms on embedding and state (enorm, hnorm); speculators' and HASS's
    norms on the embedding, before the attention and before the scores. The state is the target's after its final norm.
    """

    family = "eagle"
    num_states = 1

    def fuse(self, states: torch.Tensor) -> torch.Tensor:
        return states

    def _first_layer(
        self, embedded: torch.Tensor, states: torch.Tensor, rotary: torch.Tensor, segments: Sequence[RowSegment]
    ) -> torch.Tensor:
        joined = torch.cat([self._norm("enorm", embedded), self._norm("hnorm", states)], dim=-1)
        x = functional.linear(joined, self._weights["fc.weight"], self._weights.get("fc.bias"))
        return self._layers[0].forward(self._layers[0].norm("input_layernorm", x), x, rotary, segments)


class Eagle3(_StackedHead):
    """fc joins states of several boundaries; the first layer attends over embedding and state side by side.

    Variants: the residual is the normalised state (norm_before_residual); one norm before fc (input_norm) or, in
    EAGLE-3.1, one a boundary (fc_norm); `post_norm`: children take the state after the final norm.
    """

    family = "eagle3"

    def __init__(
        self,
        config: HeadConfig,
        tensors: Mapping[str, torch.Tensor],
        vocabulary: Vocabulary,
        *,
        num_states: int,
        post_norm: bool,
    ) -> None:
        super().__init__(config, tensors, vocabulary)
        self.num_states = num_states
        self.post_norm = post_norm

    def fuse(self, states: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            parts = states.chunk(self.num_states, dim=-1)
            joined = torch.cat([self._norm(f"fc_norm.{index}", part) for index, part in enumerate(parts)], dim=-1)
            return functional.linear(self._norm("input_norm", joined), self._weights["fc.weight"])

    def _first_layer(
        self, embedded: torch.Tensor, states: torch.Tensor, rotary: torch.Tensor, segments: Sequence[RowSegment]
    ) -> torch.Tensor:
        layer = self._layers[0]
        normed = layer.norm("hidden_norm", states)
        joined = torch.cat([layer.norm("input_layernorm", embedded), normed], dim=-1)
        return layer.forward(joined, normed if self.config.norm_before_residual else states, rotary, segments)

    def _feedback(self, x: torch.Tensor) -> torch.Tensor:
        return self._norm("norm", x) if self.post_norm else x

    def _scored(self, states: torch.Tensor, depth: int) -> torch.Tensor:
        return states if self.post_norm else self._norm("norm", states)
