"""Sequences side by side in rows of one length, and which positions a drafter is asked about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from training.features.source import FeatureSequence


def reach(produced: Tensor) -> Tensor:
    """How many unroll steps position i counts for, int64 [n], of `produced` bool [n].

    At step k a drafter that knows the state of position i and the root, token i + 1, predicts token i + 2 + k from
    tokens i + 1 to i + 1 + k. It is asked to where the root is the target's token, and matters where the prediction is
    too: step k counts where tokens i + 1 to i + 2 + k are all produced. So the last token of a prompt, whose state
    drafts first, counts; the last two of an answer do not.
    """
    n = len(produced)
    ends = torch.where(produced, n, torch.arange(n))
    next_end = ends.flip(0).cummin(0).values.flip(0)
    run = next_end - torch.arange(n)
    counts = torch.zeros(n, dtype=torch.int64)
    counts[:-1] = (run[1:] - 1).clamp(min=0)
    return counts


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows [B, L]. tokens int64, 0 in padding. documents int64: which sequence of its row a position belongs to, -1 in
    padding. positions int64, from 0 in each sequence. reach int64: `reach`. states [B, L, boundaries * hidden].
    """

    tokens: Tensor
    documents: Tensor
    positions: Tensor
    reach: Tensor
    states: Tensor

    def ahead(self, step: int) -> Tensor:
        """Token i + 1 + step at each position i, int64 [B, L]; 0 beyond the row."""
        shifted = torch.zeros_like(self.tokens)
        shifted[:, : -1 - step] = self.tokens[:, 1 + step :]
        return shifted

    def to(self, device: torch.device, dtype: torch.dtype) -> Batch:
        """On a device, the states in the type that is computed in."""
        tokens, documents, positions, reach = (
            each.to(device, non_blocking=True) for each in (self.tokens, self.documents, self.positions, self.reach)
        )
        return Batch(tokens, documents, positions, reach, self.states.to(device, non_blocking=True).to(dtype))


def collate(rows: Sequence[Sequence[FeatureSequence]], length: int) -> Batch:
    """Rows of `length` positions; a sequence that is longer than its row is cut at its end."""
    width = rows[0][0].states.shape[1]
    shape = (len(rows), length)
    tokens, reached = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)
    documents, positions = torch.full(shape, -1), torch.zeros(shape, dtype=torch.int64)
    states = torch.zeros((*shape, width), dtype=rows[0][0].states.dtype)
    for row, sequences in enumerate(rows):
        begin = 0
        for document, sequence in enumerate(sequences):
            n = min(len(sequence.token_ids), length)
            place = slice(begin, begin + n)
            tokens[row, place] = sequence.token_ids[:n]
            documents[row, place] = document
            positions[row, place] = torch.arange(n)
            reached[row, place] = reach(sequence.produced[:n])
            states[row, place] = sequence.states[:n]
            begin += n
    return Batch(tokens, documents, positions, reached, states)
