"""Heads that draft token by token from their own states: the training-time test over rows of text."""

from __future__ import annotations

from abc import abstractmethod
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from training.fit.attention import KeysValues, UnrolledAttention
from training.fit.batch import Batch
from training.fit.families.judged import Drafted, JudgedHead
from training.fit.layers import Attention, Rotation
from training.fit.settings import FitSettings
from training.fit.target import Target
from training.fit.vocabulary import DraftVocabulary
from training.settings import ModelShape


class UnrolledHead(JudgedHead):
    """One decoder layer, run over the text once and then step by step over what each row left.

    Row i of the text takes the target's states of position i and token i + 1. Only step 0 computes all rows, as later
    ones are seen by themselves alone: those that do not count are left out.
    """

    def __init__(
        self, target: Target, settings: FitSettings, shape: ModelShape, vocabulary: DraftVocabulary, final: slice
    ) -> None:
        """final: columns of the states that hold the target's last one, after its norm."""
        super().__init__(target, settings, vocabulary, final)
        self._shape = shape
        self._rotation = Rotation(shape, target.embedding.device)

    @property
    @abstractmethod
    def _attention(self) -> Attention: ...

    @abstractmethod
    def _fuse(self, states: Tensor) -> Tensor:
        """The target's states [n, boundaries * hidden] as rows of the text take them, [n, hidden]."""

    @abstractmethod
    def _enter(self, embedded: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """What queries, keys and values are projected from, and the residual."""

    @abstractmethod
    def _leave(self, residual: Tensor, attended: Tensor) -> Tensor:
        """The state after the layer, [n, hidden], which children take."""

    def _disturb(self, states: Tensor, noise: int) -> Tensor:
        """The target's states as learning takes them; `noise` is a seed."""
        return states

    def draft(self, batch: Batch, steps: int, noise: int | None = None) -> Drafted:
        """As `JudgedHead` has it."""
        width, length = len(batch.tokens), batch.tokens.shape[1]
        flat_reach, states = batch.reach.flatten(), batch.states.flatten(0, 1)
        if noise is not None:
            states = self._disturb(states, noise)
        attention = UnrolledAttention(batch.documents, compiled=states.is_cuda)
        kept = (flat_reach > 0).nonzero().flatten()
        state, chain = self._fuse(states), list[KeysValues]()
        parts: list[tuple[Tensor, Tensor]] = []
        for step in range(steps):
            rows = kept if step else torch.arange(width * length, device=kept.device)
            tokens = batch.ahead(step).flatten()[rows]
            embedded = F.embedding(tokens, self._target.embedding)
            entered, residual = self._enter(embedded, state)
            rotation = self._rotation.of(batch.positions.flatten()[rows] + step)
            key_value = self._attention.key_value(entered, rotation)
            if not step:
                entered, residual, rotation = entered[kept], residual[kept], rotation[kept]
            chain.append(cast(KeysValues, tuple(self._grid(each, rows, width, length) for each in key_value)))
            query = self._grid(self._attention.query(entered, rotation), kept, width, length)
            attended = attention.attend(query, chain[0], chain[1:]).transpose(1, 2).flatten(2).flatten(0, 1)
            state = self._leave(residual, attended.index_select(0, kept))
            parts.append((state, kept))
            stays = (flat_reach[kept] > step + 1).nonzero().flatten()
            kept, state = kept[stays], state.index_select(0, stays)
        return self._joined(parts)

    @staticmethod
    def _grid(rows: Tensor, flat: Tensor, width: int, length: int) -> Tensor:
        """[B, heads, L, head_dim] of rows [n, heads, head_dim] at places `flat`; 0 elsewhere."""
        if len(flat) == width * length:
            grid = rows
        else:
            grid = rows.new_zeros(width * length, *rows.shape[1:]).index_copy(0, flat, rows)
        return grid.view(width, length, *rows.shape[1:]).transpose(1, 2)
