"""Which sequences share a row, and which rows a step has: functions of lengths and seed, so any step can be redone."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from training.features.source import FeatureSource, TokenSequence
from training.fit.batch import reach
from training.fit.settings import FitSettings
from training.fit.threads import one_thread

NO_CATEGORY = "without a category"
SETS = 24
"""Categories that are told one by one."""

WINDOW = 1024
"""Sequences among which those that fill a row are looked for, and that are surveyed together."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What a pass over all tokens finds.

    lengths int64 [n]: tokens of each sequence that are used. counts int64 [n, steps]: positions that count at each
    unroll step. frequencies int64 [vocabulary]: how often the target produced each token. recorded bool [n]: which
    sequences others than the target wrote. produced int64 [n]: tokens that count as the target's. categories: of each.
    prompts: conversations.
    """

    lengths: np.ndarray
    counts: np.ndarray
    frequencies: np.ndarray
    recorded: np.ndarray
    produced: np.ndarray
    categories: tuple[str, ...]
    prompts: int

    @classmethod
    @one_thread()
    def of(cls, source: FeatureSource, *, row_length: int, steps: int, vocab_size: int) -> Survey:
        """Read the tokens of all sequences, not their states. ValueError for a token outside the vocabulary."""
        lengths = np.zeros(len(source), np.int64)
        counts = np.zeros((len(source), steps), np.int64)
        recorded = np.zeros(len(source), np.bool_)
        frequencies = torch.zeros(vocab_size, dtype=torch.int64)
        tokens_produced = np.zeros(len(source), np.int64)
        categories: list[str] = []
        prompts: set[str] = set()
        for begin in range(0, len(source), WINDOW):
            window = slice(begin, min(begin + WINDOW, len(source)))
            sequences = [source.tokens(index) for index in range(window.start, window.stop)]
            ids = torch.cat([sequence.token_ids[:row_length] for sequence in sequences])
            produced = torch.cat([sequence.produced[:row_length] for sequence in sequences])
            if int(ids.max()) >= vocab_size or int(ids.min()) < 0:
                raise ValueError(f"{_foreign(sequences, vocab_size)} outside the target's vocabulary of {vocab_size}")
            each = torch.tensor([min(len(sequence.token_ids), row_length) for sequence in sequences])
            ends = each.cumsum(0)
            reached = reach(produced, ends.repeat_interleave(each)).numpy()
            begins = (ends - each).numpy()
            lengths[window] = each
            recorded[window] = [sequence.recorded for sequence in sequences]
            tokens_produced[window] = np.add.reduceat(produced.numpy().astype(np.int64), begins)
            categories += [sequence.category for sequence in sequences]
            prompts |= {sequence.id for sequence in sequences}
            for step in range(steps):
                counts[window, step] = np.add.reduceat((reached > step).astype(np.int64), begins)
            frequencies += torch.bincount(ids[produced], minlength=vocab_size)
        found = (frequencies.numpy(), recorded, tokens_produced, tuple(categories), len(prompts))
        return cls(lengths, counts, *found)

    def document(self) -> dict[str, Any]:
        """As JSON has it: counts of all of it and by category, the largest first, the last of them together."""
        sequences = Counter(self.categories)
        produced: Counter[str] = Counter()
        for category, count in zip(self.categories, self.produced.tolist(), strict=True):
            produced[category] += count
        sets = {
            name or NO_CATEGORY: {"sequences": sequences[name], "produced": count}
            for name, count in produced.most_common(SETS)
        }
        if rest := produced.most_common()[SETS:]:
            others = {
                "sequences": sum(sequences[name] for name, _ in rest),
                "produced": sum(count for _, count in rest),
            }
            sets[f"{len(rest)} others"] = others
        return {
            "sequences": len(self.lengths),
            "prompts": self.prompts,
            "tokens": int(self.lengths.sum()),
            "produced": int(self.produced.sum()),
            "recorded": int(self.recorded.sum()),
            "categories": sets,
        }


def _foreign(sequences: Sequence[TokenSequence], vocab_size: int) -> str:
    """Which sequence it is that holds other tokens."""
    outside = (each.id for each in sequences if not ((each.token_ids >= 0) & (each.token_ids < vocab_size)).all())
    return f"sequence {next(outside)} holds tokens"


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


class FitPlan:
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

    def largest(self, rank: int, size: int) -> tuple[list[int], int]:
        """How many positions count at each unroll step, and how many sequences there are, in any step's rows of one
        process of `size`, at most.
        """
        chosen = np.array([self._row(number) for number in range(self.steps * self._batch_rows)])
        mine = chosen.reshape(self.steps, self._batch_rows)[:, rank::size]
        sequences = np.array([len(row) for row in self.rows])
        return self._counts[mine].sum(axis=1).max(axis=0).tolist(), int(sequences[mine].sum(axis=1).max())

    def _row(self, number: int) -> int:
        epoch, place = divmod(number, len(self.rows))
        if self._order[0] != epoch:
            self._order = epoch, np.random.default_rng((self._seed, 1, epoch)).permutation(len(self.rows))
        return int(self._order[1][place])
