"""Heads that draft token by token from their own states: the training-time test over rows of text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.fit.attention import KeysValues, UnrolledAttention
from training.fit.batch import Batch
from training.fit.cross_entropy import soft_cross_entropy
from training.fit.family import Findings
from training.fit.layers import Attention, Rotation
from training.fit.plan import Survey
from training.fit.target import Target
from training.fit.vocabulary import DraftVocabulary
from training.settings import ModelShape


@dataclass(frozen=True, slots=True)
class Drafted:
    """All steps one after the other, n positions in all.

    states [n, hidden]: what each position left for its child. scored [n, hidden]: what its scores are taken of. flat
    int64 [n]: its place in the batch [B * L]. step int64 [n]. sizes: positions of each step.
    """

    states: Tensor
    scored: Tensor
    flat: Tensor
    step: Tensor
    sizes: list[int]


class UnrolledHead(ABC):
    """One decoder layer, run over the text once and then step by step over what each row left.

    Row i of the text takes the target's states of position i and token i + 1. Only step 0 computes all rows, as later
    ones are seen by themselves alone: those that do not count are left out.
    """

    def __init__(self, target: Target, shape: ModelShape, vocabulary: DraftVocabulary, final: slice) -> None:
        """final: columns of the states that hold the target's last one, after its norm."""
        self._target, self._shape, self._vocabulary, self._final = target, shape, vocabulary, final
        device = target.embedding.device
        self._rotation = Rotation(shape, device)
        self._ids = vocabulary.ids.to(device)
        self._scored_ids = None if vocabulary.is_whole else self._ids
        self._known = vocabulary.t2d.to(device)

    @property
    @abstractmethod
    def module(self) -> nn.Module: ...

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

    @abstractmethod
    def _scored(self, state: Tensor) -> Tensor:
        """What the scores are a linear function of."""

    @abstractmethod
    def _score_weight(self) -> Tensor:
        """[entries, hidden]."""

    def _disturb(self, states: Tensor, noise: int) -> Tensor:
        """The target's states as learning takes them; `noise` is a seed."""
        return states

    def _regress(self, drafted: Drafted, truth: Tensor, weights: Tensor) -> Tensor | None:
        """A loss on the states themselves, whose truth is [n, hidden]; `weights` float32 [n] of each position."""
        return None

    def _step_weights(self, steps: int) -> list[float]:
        """Of the cross-entropy of each step."""
        raise NotImplementedError

    def draft(self, batch: Batch, steps: int, noise: int | None = None) -> Drafted:
        """Run all steps, with the text's tokens as drafted ones."""
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

    def look(self, batch: Batch, counts: Tensor, *, steps: int, noise: int | None) -> Findings:
        """As `training.fit.family.Head` has it."""
        drafted = self.draft(batch, steps, noise)
        judged = (batch.reach.flatten() > 0).nonzero().flatten() + 1
        truth = batch.states.flatten(0, 1).index_select(0, judged)[:, self._final]
        verdict = self._target.judge(truth, self._scored_ids)
        places = torch.searchsorted(judged, drafted.flat + 1 + drafted.step)
        wanted = verdict.best[places]
        known = self._known[wanted]
        shares = counts.clamp(min=1).reciprocal()
        weights = shares.new_tensor(self._step_weights(steps)) * shares
        loss, losses, best = soft_cross_entropy(
            drafted.scored, self._score_weight(), verdict.probabilities, places, weights[drafted.step] * known
        )
        regression = self._regress(drafted, truth[places], shares[drafted.step])
        if regression is not None:
            loss = loss + regression
        return self._found(batch, drafted, loss, losses * known, self._ids[best] == wanted, verdict.best)

    @staticmethod
    def _found(batch: Batch, drafted: Drafted, loss: Tensor, losses: Tensor, right: Tensor, wanted: Tensor) -> Findings:
        """losses, right: of each position drafted. wanted: the target's most likely token where the text counts."""
        shape, steps = batch.tokens.shape, len(drafted.sizes)
        hits = torch.zeros(steps, batch.tokens.numel(), dtype=torch.bool, device=right.device)
        hits[drafted.step, drafted.flat] = right
        agrees = torch.zeros_like(hits[0])
        counting = (batch.reach.flatten() > 0).nonzero().flatten()
        agrees[counting] = wanted == batch.tokens.flatten()[counting + 2]
        sums = torch.zeros(steps, device=right.device).index_add_(0, drafted.step, losses)
        return Findings(loss, sums, hits.sum(dim=1), hits.view(steps, *shape), agrees.view(shape))

    def _joined(self, parts: list[tuple[Tensor, Tensor]]) -> Drafted:
        states = torch.cat([state for state, _ in parts])
        sizes = [len(flat) for _, flat in parts]
        step = torch.arange(len(parts), device=states.device).repeat_interleave(
            torch.tensor(sizes, device=states.device), output_size=sum(sizes)
        )
        return Drafted(states, self._scored(states), torch.cat([flat for _, flat in parts]), step, sizes)

    @staticmethod
    def _grid(rows: Tensor, flat: Tensor, width: int, length: int) -> Tensor:
        """[B, heads, L, head_dim] of rows [n, heads, head_dim] at places `flat`; 0 elsewhere."""
        if len(flat) == width * length:
            grid = rows
        else:
            grid = rows.new_zeros(width * length, *rows.shape[1:]).index_copy(0, flat, rows)
        return grid.view(width, length, *rows.shape[1:]).transpose(1, 2)

    def describe(self, survey: Survey) -> dict[str, Any]:
        """As `training.fit.family.Head` has it."""
        return {
            "parameters": sum(parameter.numel() for parameter in self.module.parameters()),
            "draft_vocab": len(self._vocabulary.ids),
            "coverage": round(self._vocabulary.coverage(survey.frequencies), 6),
        }
