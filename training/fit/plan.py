"""Which sequences share a row, and which rows a step has: functions of lengths and seed, so any step can be redone."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from training.features.source import FeatureSource
from training.fit.batch import reach
from training.fit.settings import FitSettings

WINDOW = 1024
"""Sequences among which those that fill a row are looked for."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What a pass over all tokens finds.

    lengths int64 [n]: tokens of each sequence that are used. counts int64 [n, steps]: positions that count at each
    unroll step. frequencies int64 [vocabulary]: how often the target produced each token. recorded bool [n]: which
    sequences others than the target wrote.
    """

    lengths: np.ndarray
    counts: np.ndarray
    frequencies: np.ndarray
    recorded: np.ndarray

    @classmethod
    def of(cls, source: FeatureSource, *, row_length: int, steps: int, vocab_size: int) -> Survey:
        """Read the tokens of all sequences, not their states. ValueError for a token outside the vocabulary."""
        lengths = np.zeros(len(source), np.int64)
        counts = np.zeros((len(source), steps), np.int64)
        recorded = np.zeros(len(source), np.bool_)
        frequencies = torch.zeros(vocab_size, dtype=torch.int64)
        for index in range(len(source)):
            sequence = source.tokens(index)
            ids, produced = sequence.token_ids[:row_length], sequence.produced[:row_length]
            if int(ids.max()) >= vocab_size or int(ids.min()) < 0:
                raise ValueError(f"sequence {sequence.id} holds tokens outside the target's vocabulary of {vocab_size}")
            reached = reach(produced)
            lengths[index] = len(ids)
            recorded[index] = sequence.recorded
            counts[index] = [int((reached > step).sum()) for step in range(steps)]
            frequencies += torch.bincount(ids[produced], minlength=vocab_size)
        return cls(lengths, counts, frequencies.numpy(), recorded)


def pack(lengths: Sequence[int], order: Sequence[int], row_length: int) -> list[list[int]]:
    """Sequences of `order` in rows of at most `row_length` tokens: best fit, the longest of each window first."""
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []
    for begin in range(0, len(order), WINDOW):
        for index in sorted(order[begin : begin + WINDOW], key=lambda each: (-lengths[each], each)):
            length = int(lengths[index])
            place = bisect.bisect_left(room, (length, -1))
            if place < len(room):
                left, row = room.pop(place)
                rows[row].append(index)
            else:
                left, row = row_length, len(rows)
                rows.append([index])
            bisect.insort(room, (left - length, row))
        room = room[-WINDOW:]
    return rows


class Plan:
    """The rows of every step. All processes make the same plan and take their share of each step."""

    def __init__(self, survey: Survey, settings: FitSettings) -> None:
        """ValueError where no sequence has anything to learn from."""
        useful = np.flatnonzero(survey.counts[:, 0])
        if not len(useful):
            raise ValueError("no sequence has two tokens in a row that the target produced: there is nothing to learn")
        order = np.random.default_rng((settings.seed, 0)).permutation(useful)
        self.rows = pack(survey.lengths.tolist(), order.tolist(), settings.row_length)
        self.used, self.left_out = len(useful), len(survey.lengths) - len(useful)
        self._counts = np.array([survey.counts[row].sum(axis=0) for row in self.rows])
        self._batch_rows, self._seed = settings.batch_rows, settings.seed
        wanted = max(1, settings.epochs * len(self.rows) // settings.batch_rows)
        self.steps = min(wanted, settings.max_steps) if settings.max_steps else wanted
        self._order: tuple[int, np.ndarray] = (-1, np.empty(0))

    def step(self, step: int) -> tuple[list[list[int]], np.ndarray]:
        """The rows of a step, and how many positions count at each unroll step in all of them, int64 [steps]."""
        chosen = [self._row(number) for number in range(step * self._batch_rows, (step + 1) * self._batch_rows)]
        return [self.rows[row] for row in chosen], self._counts[chosen].sum(axis=0)

    def _row(self, number: int) -> int:
        epoch, place = divmod(number, len(self.rows))
        if self._order[0] != epoch:
            self._order = epoch, np.random.default_rng((self._seed, 1, epoch)).permutation(len(self.rows))
        return int(self._order[1][place])
