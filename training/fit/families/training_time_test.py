"""Heads that draft token by token from their own states: the training-time test over rows of text."""

from __future__ import annotations

from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor

from training.common.model_shape import ModelShape
from training.fit.attention import KeysValues, UnrolledAttention
from training.fit.batch import Batch
from training.fit.families.distilled_head import Drafted, JudgedHead
from training.fit.layers import Attention, Rotation
from training.fit.settings import FitSettings
from training.fit.target import TargetRows
from training.fit.vocabulary import DraftVocabulary


class UnrolledHead(JudgedHead):
    """One decoder layer, run over the text once and then step by step over what each row left.

    Row i of the text takes the target's states of position i and token i + 1. Only step 0 computes all rows, as later
    ones are seen by themselves alone: those that do not count are left out.
    """

    def __init__(
        self, target: TargetRows, settings: FitSettings, shape: ModelShape, vocabulary: DraftVocabulary, final: slice
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
        states = batch.states.flatten(0, 1)
        if noise is not None:
            states = self._disturb(states, noise)
        attention = UnrolledAttention(batch)
        positions, rotations = batch.positions.flatten(), self._rotation.upto(batch.tokens.shape[1] + steps)
        state, left, seen = self._fuse(states), list[Tensor](), list[KeysValues]()
        for step in range(steps):
            places = batch.at(step)
            rows = places if step else torch.arange(len(states), device=places.device)
            embedded = F.embedding(batch.ahead(step).flatten().index_select(0, rows), self._target.embedding)
            entered, residual = self._enter(embedded, state)
            rotation = rotations.index_select(0, positions.index_select(0, rows) + step)
            query, key, value = self._attention(entered, rotation)
            if not step:
                query, residual = query.index_select(0, places), residual.index_select(0, places)
            seen.append((key, value))
            attended = attention.attend(query, seen[0], seen[1:]).flatten(1)
            left.append(self._leave(residual, attended))
            state = left[-1][: len(batch.at(step + 1))]
        return self._joined(left, batch)
