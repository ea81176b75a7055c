"""A look at the labels before anything is learnt: did this target write these tokens, after just these states?

A token that the target drew has, on average, the target's own entropy as its surprise (less if it was drawn at a
temperature below 1). Where tokens, mask, template or states are off by anything, the surprise is far above it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from training.features.source import FeatureSource
from training.fit.target import Target

SEQUENCES = 48
LONGEST = 1024
MARGIN = 0.15
"""Nats a token above the entropy that are put down to rounding and chance, beside four standard errors."""


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
    how many tokens end a text.
    """

    produced: Surprise
    first: Surprise
    late: Surprise
    early: Surprise
    ends: tuple[int, int, int]

    def document(self) -> dict[str, float]:
        """Figures for the manifest."""
        return {
            "tokens": self.produced.tokens,
            "nats": round(self.produced.nats, 4),
            "entropy": round(self.produced.entropy, 4),
            "agreement": round(self.produced.agreement, 4),
            "nats_of_first": round(self.first.nats, 4),
        }

    def demand(self) -> None:
        """LabelError, with figures, unless the labels look right."""
        shifted = min(self.late, self.early, key=lambda each: each.nats)
        if self.produced.excess > 0 and shifted.excess <= 0:
            raise LabelError(
                f"tokens and states are shifted against each other: after its state a token has {self.produced}, "
                f"{'after the state before' if shifted is self.early else 'at its own state'} {shifted}"
            )
        if self.ends[1] < max(self.ends[0], self.ends[2]):
            raise LabelError(
                f"the mask is shifted: of the tokens before, at and after the end of each answer "
                f"{', '.join(map(str, self.ends))} end a text"
            )
        for what, surprise in (("produced tokens", self.produced), ("first tokens of answers", self.first)):
            if surprise.excess > 0:
                raise LabelError(
                    f"the target would hardly have written these {what}: {surprise}. Is the chat template another, the "
                    "mask off, or are the answers or states another model's?"
                )


def examine(source: FeatureSource, target: Target, final: slice, ends: Collection[int]) -> LabelReport:
    """Compare the target's distributions with the tokens of sequences from all over the source.

    final: columns of the states that hold the last one after its norm. ends: ids that end a text.
    """
    device, dtype = target.embedding.device, target.embedding.dtype
    found: dict[str, list[tuple[Tensor, Tensor, Tensor]]] = {"produced": [], "first": [], "late": [], "early": []}
    at_end = [0, 0, 0]
    stride = max(1, len(source) // SEQUENCES)
    for sequence in source.batch(range(0, len(source), stride)[:SEQUENCES]):
        ids, produced = sequence.token_ids[:LONGEST], sequence.produced[:LONGEST]
        states = sequence.states[:LONGEST, final].to(device, dtype)
        log_p = target.logits(states).log_softmax(dim=-1)
        for name, positions, shift in _looks(produced):
            positions = positions[(positions + shift >= 0) & (positions + shift < len(ids)) & (positions >= 1)]
            found[name].append(_surprises(log_p[positions - 1], ids[positions + shift].to(device)))
        last = (produced & ~_next(produced)).nonzero().flatten()
        for place, offset in enumerate((-1, 0, 1)):
            near = last + offset
            near = near[(near >= 0) & (near < len(ids))]
            at_end[place] += int(torch.isin(ids[near], torch.tensor(sorted(ends), dtype=torch.int64)).sum())
    parts = {
        name: Surprise.of(*(torch.cat(each) for each in zip(*looks, strict=True))) for name, looks in found.items()
    }
    return LabelReport(**parts, ends=(at_end[0], at_end[1], at_end[2]))


def _looks(produced: Tensor) -> list[tuple[str, Tensor, int]]:
    everywhere = produced.nonzero().flatten()
    first = (produced & ~_next(produced.flip(0)).flip(0)).nonzero().flatten()
    return [("produced", everywhere, 0), ("first", first, 0), ("late", everywhere, -1), ("early", everywhere, 1)]


def _next(produced: Tensor) -> Tensor:
    """Whether the token after is produced."""
    return torch.cat((produced[1:], produced.new_zeros(1)))


def _surprises(log_p: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    nats = -log_p.gather(1, ids[:, None])[:, 0]
    return nats, -(log_p.exp() * log_p).sum(dim=-1), log_p.argmax(dim=-1) == ids
