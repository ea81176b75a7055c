"""Heads whose drafts the target judges: soft cross-entropy of every step, and which tokens would be accepted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from training.fit.batch import Batch
from training.fit.cross_entropy import soft_cross_entropy
from training.fit.family import Findings
from training.fit.plan import Survey
from training.fit.settings import FitSettings
from training.fit.target import TargetRows
from training.fit.vocabulary import DraftVocabulary, coverage_by_size


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


class JudgedHead(ABC):
    """What all families share. `_decay` weighs each step over the one before, `_score_share` all scores."""

    repeats: ClassVar[bool] = True
    _score_share: ClassVar[float] = 1.0

    def __init__(self, target: TargetRows, settings: FitSettings, vocabulary: DraftVocabulary, final: slice) -> None:
        """final: columns of the states that hold the target's last one, after its norm."""
        self._target, self._vocabulary, self._final = target, vocabulary, final
        self._decay, self._argmax_weight = settings.decay, settings.argmax_weight
        device = target.embedding.device
        self._ids = vocabulary.ids.to(device)
        self._scored_ids = None if vocabulary.is_whole else self._ids
        self._known = vocabulary.t2d.to(device)

    @property
    @abstractmethod
    def module(self) -> nn.Module: ...

    @abstractmethod
    def draft(self, batch: Batch, steps: int, noise: int | None = None) -> Drafted:
        """Run all steps, with the text's tokens as drafted ones; `noise` as `look` has it."""

    @abstractmethod
    def _scored(self, state: Tensor) -> Tensor:
        """What the scores are a linear function of."""

    @abstractmethod
    def _score_weight(self) -> Tensor:
        """[entries, hidden]."""

    def _regress(self, drafted: Drafted, truth: Tensor, places: Tensor, weights: Tensor) -> Tensor | None:
        """A loss on the states themselves; `places` int64 [n] are their rows of `truth`, `weights` float32 [n]."""
        return None

    def look(self, batch: Batch, counts: Tensor, *, steps: int, noise: int | None) -> Findings:
        """As `training.fit.family.Head` has it."""
        drafted = self.draft(batch, steps, noise)
        judged = batch.at(0)
        truth = batch.states.flatten(0, 1)[:, self._final].index_select(0, judged + 1)
        verdict = self._target.judge(truth, self._scored_ids, self._argmax_weight)
        number = torch.zeros_like(batch.reach).flatten()
        number.index_copy_(0, judged, torch.arange(len(judged), device=judged.device))
        places = number.index_select(0, drafted.flat + drafted.step)
        wanted = verdict.best.index_select(0, places)
        valid = batch.reach.flatten().index_select(0, drafted.flat) > drafted.step
        known = self._known[wanted] & valid
        shares = counts.clamp(min=1).reciprocal()
        weights = self._decay ** torch.arange(steps, device=shares.device) * self._score_share * shares
        loss, losses, best = soft_cross_entropy(
            drafted.scored, self._score_weight(), verdict.probabilities, places, weights[drafted.step] * known
        )
        regression = self._regress(drafted, truth, places, shares[drafted.step] * valid)
        if regression is not None:
            loss = loss + regression
        return self._found(batch, drafted, loss, losses * known, (self._ids[best] == wanted) & valid, verdict.best)

    @staticmethod
    def _found(batch: Batch, drafted: Drafted, loss: Tensor, losses: Tensor, right: Tensor, wanted: Tensor) -> Findings:
        """losses, right: of each position drafted. wanted: the target's most likely token where the text counts."""
        shape, steps = batch.tokens.shape, len(drafted.sizes)
        hits = torch.zeros(steps, batch.tokens.numel(), dtype=torch.bool, device=right.device)
        hits[drafted.step, drafted.flat] = right
        agrees = torch.zeros_like(hits[0])
        counting = batch.at(0)
        agrees[counting] = wanted == batch.tokens.flatten()[counting + 2]
        sums = torch.stack([of_step.sum() for of_step in losses.split(drafted.sizes)])
        return Findings(loss, sums, hits.sum(dim=1), hits.view(steps, *shape), agrees.view(shape))

    def _joined(self, parts: list[Tensor], batch: Batch) -> Drafted:
        """Of the states of each step, [n, hidden]."""
        places = [batch.at(step) for step in range(len(parts))]
        steps = [torch.full_like(each, step) for step, each in enumerate(places)]
        states, sizes = torch.cat(parts), [len(each) for each in places]
        return Drafted(states, self._scored(states), torch.cat(places), torch.cat(steps), sizes)

    def describe(self, survey: Survey) -> dict[str, Any]:
        """As `training.fit.family.Head` has it."""
        size, frequencies = len(self._vocabulary.ids), survey.frequencies
        about = {
            "parameters": sum(parameter.numel() for parameter in self.module.parameters()),
            "draft_vocab": size,
            "coverage": round(self._vocabulary.coverage(frequencies), 6),
        }
        return about if self._vocabulary.is_whole else about | {"coverage_by_size": coverage_by_size(frequencies, size)}
