"""A look at the labels before anything is learnt: did this target write these tokens, after just these states?

A token that the target drew has, on average, the target's own entropy as its surprise (less if it was drawn at a
temperature below 1). Where tokens, mask, template or states are off by anything, the surprise is far above it.

Recorded tokens were drawn by others, and may surprise the target as much as they like; but each less after its own
state than the tokens beside it would, since no language model worth a drafter takes one place of a text for the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from training.features.source import FeatureSource
from training.fit.target import TargetRows

SEQUENCES = 48
LONGEST = 1024
MARGIN = 0.15
"""Nats a token above the entropy that are put down to rounding and chance, beside four standard errors."""
SAME_BEGIN = 0.9
"""Of recorded answers to prompts, the part that begins behind one and the same token, at least."""
GAIN = 1.0
"""Nats by which a recorded token surprises the target less than the tokens before and after it in its place, at least:
the demo model's gain 13 on the text it was made of, a model that has nothing to do with the text gains none.
"""


class LabelError(ValueError):
    """Labels that the target cannot have produced."""


@dataclass(frozen=True, slots=True)
class Surprise:
    """Of some tokens: -log p in nats, mean; the entropies they were drawn at, mean; the standard error of the
    difference; the part that was the most likely token.
    """

    tokens: int
    nats: float
    entropy: float
    error: float
    agreement: float

    @property
    def excess(self) -> float:
        """Nats above what chance and rounding explain."""
        return self.nats - self.entropy - 4 * self.error - MARGIN

    def __str__(self) -> str:
        return f"{self.nats:.2f} nats where {self.entropy:.2f} are expected, {self.agreement:.0%} most likely"

    @classmethod
    def of(cls, nats: Tensor, entropy: Tensor, right: Tensor) -> Surprise:
        """Each float32 or bool [n]."""
        if not len(nats):
            return cls(0, 0.0, 0.0, 0.0, 1.0)
        gap = nats - entropy
        error = float(gap.std(correction=0)) / len(gap) ** 0.5
        return cls(len(nats), float(nats.mean()), float(entropy.mean()), error, float(right.float().mean()))


@dataclass(frozen=True, slots=True)
class LabelReport:
    """produced: the tokens learnt from. first: of them the first of each answer. late, early: the same positions'
    states against the token before and after the right one. ends: for offsets -1, 0, 1 from each answer's last token,
    how many tokens end a text. begins: the part of answers that stand behind the most frequent of the tokens that do.
    """

    produced: Surprise
    first: Surprise
    late: Surprise
    early: Surprise
    ends: tuple[int, int, int]
    begins: float = 1.0
    recorded: bool = False

    def document(self) -> dict[str, float]:
        """Figures for the manifest."""
        if self.recorded:
            shifted = min(self.late.nats, self.early.nats)
            return {
                "recorded_tokens": self.produced.tokens,
                "recorded_nats": round(self.produced.nats, 4),
                "recorded_nats_of_first": round(self.first.nats, 4),
                "recorded_nats_shifted": round(shifted, 4),
            }
        return {
            "tokens": self.produced.tokens,
            "nats": round(self.produced.nats, 4),
            "entropy": round(self.produced.entropy, 4),
            "agreement": round(self.produced.agreement, 4),
            "nats_of_first": round(self.first.nats, 4),
        }

    def demand(self) -> None:
        """LabelError, with figures, unless the labels look right."""
        self._demand_ends()
        if self.recorded:
            self._demand_gain()
        else:
            self._demand_own()

    def _demand_ends(self) -> None:
        if self.ends[1] < max(self.ends[0], self.ends[2]):
            raise LabelError(
                f"the mask is shifted: of the tokens before, at and after the end of each answer "
                f"{', '.join(map(str, self.ends))} end a text"
            )

    def _demand_gain(self) -> None:
        if self.begins < SAME_BEGIN:
            raise LabelError(
                f"the mask is shifted: {self.begins:.0%} of recorded answers begin behind the same token, all should, "
                "behind the end of the generation prompt"
            )
        for where, shifted in (("at its own state", self.late), ("after the state before", self.early)):
            if min(self.produced.tokens, shifted.tokens) and shifted.nats - self.produced.nats < GAIN:
                raise LabelError(
                    f"recorded tokens surprise the target by {self.produced.nats:.2f} nats, and by {shifted.nats:.2f} "
                    f"where each is taken {where}: tokens and states are shifted against each other, or the states "
                    "are another model's"
                )

    def _demand_own(self) -> None:
        shifted = min(self.late, self.early, key=lambda each: each.nats)
        if self.produced.excess > 0 and shifted.excess <= 0:
            raise LabelError(
                f"tokens and states are shifted against each other: after its state a token has {self.produced}, "
                f"{'after the state before' if shifted is self.early else 'at its own state'} {shifted}"
            )
        for what, surprise in (("produced tokens", self.produced), ("first tokens of answers", self.first)):
            if surprise.excess > 0:
                raise LabelError(
                    f"the target would hardly have written these {what}: {surprise}. Is the chat template another, the "
                    "mask off, or are the answers or states another model's? (Answers drawn at a temperature above 1 "
                    "look so too.)"
                )


def examine(
    source: FeatureSource, target: TargetRows, final: slice, ends: Collection[int], recorded: npt.NDArray[np.bool_]
) -> list[LabelReport]:
    """Compare the target's distributions with the tokens of sequences from all over the source.

    final: columns of the states that hold the last one after its norm. ends: ids that end a text. recorded: bool
    [sequences], those that others than the target wrote, which have a report of their own.
    """
    kinds = ((kind, np.flatnonzero(recorded == kind).tolist()) for kind in (False, True))
    return [_examine(source, target, final, ends, chosen, kind) for kind, chosen in kinds if chosen]


def _examine(
    source: FeatureSource, target: TargetRows, final: slice, ends: Collection[int], among: list[int], recorded: bool
) -> LabelReport:
    device, dtype = target.embedding.device, target.embedding.dtype
    found: dict[str, list[tuple[Tensor, Tensor, Tensor]]] = {"produced": [], "first": [], "late": [], "early": []}
    at_end = [0, 0, 0]
    before: Counter[int] = Counter()
    for sequence in source.batch(among[:: max(1, len(among) // SEQUENCES)][:SEQUENCES]):
        ids, produced = sequence.token_ids[:LONGEST], sequence.produced[:LONGEST]
        states = sequence.states[:LONGEST, final].to(device, dtype)
        log_p = target.logits(states).log_softmax(dim=-1)
        for name, positions, shift in _looks(produced):
            positions = positions[(positions + shift >= 0) & (positions + shift < len(ids)) & (positions >= 1)]
            found[name].append(_surprises(log_p[positions - 1], ids[positions + shift].to(device)))
        before.update(ids[_first(produced)[2:].nonzero().flatten() + 1].tolist())
        last = (produced & ~_next(produced)).nonzero().flatten()
        for place, offset in enumerate((-1, 0, 1)):
            near = last + offset
            near = near[(near >= 0) & (near < len(ids))]
            at_end[place] += int(torch.isin(ids[near], torch.tensor(sorted(ends), dtype=torch.int64)).sum())
    parts = {
        name: Surprise.of(*(torch.cat(each) for each in zip(*looks, strict=True))) for name, looks in found.items()
    }
    begins = max(before.values(), default=1) / max(1, before.total())
    return LabelReport(**parts, ends=(at_end[0], at_end[1], at_end[2]), begins=begins, recorded=recorded)


def _looks(produced: Tensor) -> list[tuple[str, Tensor, int]]:
    everywhere = produced.nonzero().flatten()
    first = _first(produced).nonzero().flatten()
    return [("produced", everywhere, 0), ("first", first, 0), ("late", everywhere, -1), ("early", everywhere, 1)]


def _first(produced: Tensor) -> Tensor:
    """Whether the token before is not produced, and this one is."""
    return produced & ~_next(produced.flip(0)).flip(0)


def _next(produced: Tensor) -> Tensor:
    """Whether the token after is produced."""
    return torch.cat((produced[1:], produced.new_zeros(1)))


def _surprises(log_p: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    nats = -log_p.gather(1, ids[:, None])[:, 0]
    return nats, -(log_p.exp() * log_p).sum(dim=-1), log_p.argmax(dim=-1) == ids
