"""Sequences side by side in rows of one length, and which positions a drafter is asked about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from training.features.source import FeatureSequence


def reach(produced: Tensor, ends: Tensor | None = None) -> Tensor:
    """How many unroll steps position i counts for, int64 [n], of `produced` bool [n].

    ends: int64 [n], ascending, behind the last position of each one's sequence, where there are several side by side.

    At step k a drafter that knows the state of position i and the root, token i + 1, predicts token i + 2 + k from
    tokens i + 1 to i + 1 + k. It is asked to where the root is the target's token, and matters where the prediction is
    too: step k counts where tokens i + 1 to i + 2 + k are all produced. So the last token of a prompt, whose state
    drafts first, counts; the last two of an answer do not.
    """
    n = len(produced)
    places = torch.arange(n)
    last = torch.full((n,), n) if ends is None else ends
    next_end = torch.where(produced, n, places).flip(0).cummin(0).values.flip(0).minimum(last)
    counts = torch.zeros(n, dtype=torch.int64)
    counts[:-1] = (next_end[1:] - places[1:] - 1).clamp(min=0)
    return counts.masked_fill_(places + 1 >= last, 0)


@dataclass(frozen=True, slots=True)
class Frame:
    """Shapes that all batches of a run fit in, so that the device can be told of all its work once.

    sizes: places of each step, those too many being padding that counts for nothing. edges: length of `Batch.ends`,
    those too many lying at the end. spare: positions behind each row, so that every step has tokens ahead of padding.
    """

    sizes: tuple[int, ...]
    edges: int
    spare: int

    @classmethod
    def of(cls, counts: Sequence[int], rows: int, documents: int) -> Frame:
        """counts: places that count at each step, at most. documents: sequences in `rows` rows, at most."""
        return cls(
            tuple(-(-count // 64) * 64 for count in counts), documents + rows + 1, -(-(len(counts) + 2) // 8) * 8
        )

    def empty(self, rows: int, length: int, width: int, dtype: torch.dtype) -> Batch:
        """Padding alone, with states of that width."""
        shape = (rows, length + self.spare)
        zeros = torch.zeros(shape, dtype=torch.int64)
        return Batch.of(zeros, zeros - 1, zeros, zeros, torch.zeros(*shape, width, dtype=dtype)).fitted(self)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows [B, L]. tokens int64, 0 in padding. documents int64: which sequence of its row a position belongs to, -1 in
    padding. positions int64, from 0 in each sequence. reach int64: `reach`. states [B, L, boundaries * hidden].

    Of the B * L places side by side, a sequence or the padding of a row at a time, ends int32 [those + 1] are where
    each begins and the last ends; none has more than `longest` places. counting int64: places that count, those that
    count for the most steps first, so that step k has the first sizes[k] of them.
    """

    tokens: Tensor
    documents: Tensor
    positions: Tensor
    reach: Tensor
    states: Tensor
    ends: Tensor
    longest: int
    counting: Tensor
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, tokens: Tensor, documents: Tensor, positions: Tensor, reach: Tensor, states: Tensor) -> Batch:
        """With all that follows from these, which are on the CPU."""
        flat = reach.flatten()
        counting = torch.argsort(flat, descending=True, stable=True)[: int((flat > 0).sum())]
        begins = torch.ones_like(documents, dtype=torch.bool)
        begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
        ends = torch.cat((begins.flatten().nonzero().flatten(), torch.tensor([begins.numel()]))).int()
        sizes = flat.numel() - torch.bincount(flat).cumsum(0)[:-1] if len(counting) else flat[:0]
        return cls(
            tokens, documents, positions, reach, states, ends, int(ends.diff().max()), counting, tuple(sizes.tolist())
        )

    def at(self, step: int) -> Tensor:
        """Places that count at a step, int64 [n]; in a frame perhaps others behind them, whose `reach` is less."""
        return self.counting[: self.sizes[step] if step < len(self.sizes) else 0]

    @property
    def used(self) -> int:
        """Places that are no padding. On the CPU."""
        return int((self.documents >= 0).sum())

    def ahead(self, step: int) -> Tensor:
        """Token i + 1 + step at each position i, int64 [B, L]; 0 beyond the row."""
        shifted = torch.zeros_like(self.tokens)
        shifted[:, : -1 - step] = self.tokens[:, 1 + step :]
        return shifted

    def fitted(self, frame: Frame) -> Batch:
        """In a frame, with as much room at the ends of its rows; on the CPU."""
        size = self.tokens.numel()
        counting = torch.full((frame.sizes[0],), size - frame.spare).index_copy_(
            0, torch.arange(len(self.counting)), self.counting
        )
        ends = torch.full((frame.edges,), size, dtype=torch.int32)
        ends[: len(self.ends)] = self.ends
        return replace(self, counting=counting, sizes=frame.sizes, ends=ends, longest=self.tokens.shape[1])

    def to(self, device: torch.device, dtype: torch.dtype) -> Batch:
        """On a device, the states in the type that is computed in. What lies in pinned memory is not waited for."""
        moved = self._each(lambda tensor: tensor.to(device, non_blocking=True))
        return replace(moved, states=moved.states.to(dtype))

    def pinned(self) -> Batch:
        """In memory that a GPU reads by itself."""
        return self._each(Tensor.pin_memory)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """By name."""
        named = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in named.items() if isinstance(value, Tensor)}

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        changed: dict[str, Any] = {name: change(tensor) for name, tensor in self.tensors.items()}
        return replace(self, **changed)


def collate(
    rows: Sequence[Sequence[FeatureSequence]], length: int, *, frame: Frame | None = None, pinned: bool = False
) -> Batch:
    """Rows of `length` positions, or more in a frame; a sequence that is longer is cut at its end."""
    whole = length + (0 if frame is None else frame.spare)
    width, size = rows[0][0].states.shape[1], len(rows) * whole
    states = torch.empty(size, width, dtype=rows[0][0].states.dtype, pin_memory=pinned)
    there = _bytes(states)
    tokens, produced, numbers, lengths, begins = list[Tensor](), list[Tensor](), list[int](), list[int](), list[int]()
    for row, sequences in enumerate(rows):
        begin, end = row * whole, (row + 1) * whole
        for number, sequence in enumerate(sequences):
            n = min(len(sequence.token_ids), length)
            there[begin : begin + n] = _bytes(sequence.states)[:n]
            tokens.append(sequence.token_ids[:n])
            produced.append(sequence.produced[:n])
            numbers.append(number)
            lengths.append(n)
            begins.append(begin)
            begin += n
        there[begin:end] = 0
    each = torch.tensor(lengths)
    ends = each.cumsum(0)
    positions = torch.arange(int(ends[-1])) - (ends - each).repeat_interleave(each)
    places = torch.tensor(begins).repeat_interleave(each) + positions
    reached = reach(torch.cat(produced), ends.repeat_interleave(each))
    found = {
        "tokens": (torch.cat(tokens), 0),
        "documents": (torch.tensor(numbers).repeat_interleave(each), -1),
        "positions": (positions, 0),
        "reach": (reached, 0),
    }
    shape = (len(rows), whole)
    grids = {
        name: torch.full((size,), padding).index_copy_(0, places, values).view(shape)
        for name, (values, padding) in found.items()
    }
    batch = Batch.of(**grids, states=states.view(*shape, width))
    batch = batch if frame is None else batch.fitted(frame)
    return batch.pinned() if pinned else batch


def _bytes(states: Tensor) -> np.ndarray:
    """[n, bytes of a row] in the same memory: numpy copies in the calling thread, without a team of its own."""
    rows: np.ndarray = states.view(torch.uint8).numpy()
    return rows
