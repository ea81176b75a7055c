"""Where the states that a pass keeps go: all to the host, and those of committed rows to other memory of the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from slipstream_kernels.models.gpu.batch.limits import GpuLimits
from slipstream_kernels.models.gpu.graph.pass_handle import CapturedHiddenStates
from slipstream_kernels.models.gpu.graph.pinned_buffers import PinnedBuffer
from slipstream_kernels.models.gpu.graph.stream_context import StreamContext
from slipstream_kernels.ops.gpu.state_rows import ENTRY

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class HiddenStateCopy:
    """States at some boundaries of committed rows, to be put side by side into memory of the model's device.

    `rows` int64 [n, 4] is as in `ops.gpu.state_rows`: its items are those of the plan's `deciding`, its places numbers
    of `target`, bfloat16 [any].
    """

    target: torch.Tensor
    boundaries: tuple[int, ...]
    rows: Int64


@dataclass(frozen=True, slots=True, eq=False)
class HiddenStateCopies:
    """What becomes of a pass's states. `packed` int64 [n, 3] is a row's (row, order, item), as in a StateCopy.

    With `packed` those rows reach the host, in that order, where there are no more than may decode; without, all rows.
    """

    copies: Sequence[HiddenStateCopy] = ()
    packed: Int64 | None = None


CopyPlan = Callable[[], HiddenStateCopies]
"""Asked once the pass is queued, so that it is made while the device works."""


def no_copies() -> HiddenStateCopies:
    """All rows reach the host, and none go elsewhere."""
    return HiddenStateCopies()


def _most_rows(limits: GpuLimits) -> int:
    """Rows of all tables of a pass: a request's go to its drafter, one that takes it over, and, packed, to the host."""
    return 3 * limits.max_rows if limits.boundaries else 0


_STAGES = 2
"""Passes whose states may be on their way to the host."""


@dataclass(slots=True, eq=False)
class _Stage:
    """Where states lie while they travel to the host, so that the next pass may overwrite those of this one.

    `filled` comes when they lie there, `sent` when they have left.
    """

    rows: torch.Tensor
    filled: torch.cuda.Event | None
    sent: torch.cuda.Event | None = None


class HiddenStateSender:
    """Queues the copies of passes' states behind the passes.

    Those on the device are on the current stream. To the host the states of as many rows as may decode travel on
    a stream of their own, so that the next pass does not wait for the bus; those of more rows on the current one.
    """

    def __init__(self, limits: GpuLimits, hidden: int, device: torch.device, op: Callable[..., None]) -> None:
        """`op` is `copy_states`."""
        self._hidden = hidden
        self._device = device
        self._op = op
        self._most = _most_rows(limits)
        self._rows = torch.zeros(self._most, ENTRY, dtype=torch.int64, device=device)
        self._most_packed = limits.max_decode_rows
        self._stages: list[_Stage] = []
        self._next = 0
        self._bus = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._on_bus = None if self._bus is None else StreamContext(self._bus)
        self._boundaries: tuple[int, ...] = ()
        self._columns: dict[tuple[int, ...], torch.Tensor] = {}
        self._copies_states = limits.boundaries > 0

    @staticmethod
    def num_bytes(limits: GpuLimits, hidden: int) -> int:
        """What it takes of the device's memory."""
        stage = 2 * limits.max_decode_rows * limits.boundaries * hidden
        return _STAGES * stage + 8 * ENTRY * _most_rows(limits)

    def keep(self, boundaries: tuple[int, ...]) -> None:
        """From now on the passes keep states at these boundaries. None that keeps any may be under way."""
        self._boundaries = boundaries
        self._columns.clear()
        size = self._most_packed * len(boundaries) * self._hidden
        if not self._stages or len(self._stages[0].rows) < size:
            if self._bus is not None:
                self._bus.synchronize()
            self._stages = [
                _Stage(
                    torch.empty(size, dtype=torch.bfloat16, device=self._device),
                    None if self._bus is None else torch.cuda.Event(),
                )
                for _ in range(_STAGES)
            ]

    def send(
        self, states: torch.Tensor, result: torch.Tensor, count: int, plan: HiddenStateCopies, buffer: PinnedBuffer
    ) -> CapturedHiddenStates:
        """Queue what becomes of `states`, bfloat16 [rows, boundaries * hidden], of which `count` rows are the plan's.

        ValueError for copies of more rows than any pass has. `result` is that of the pass on the device.
        """
        copied = None
        tables = self._load(plan, buffer)
        for copy, rows in zip(plan.copies, tables, strict=False):
            columns = self._columns_of(copy.boundaries)
            self._op(states, result, rows, columns, copy.target, self._hidden)
        if plan.copies and buffer.copied_event is not None:
            copied = buffer.copied_event
            copied.record()
        source, stage = states[:count], None
        if plan.packed is not None or count <= self._most_packed:
            stage = self._take_stage()
            kept_rows = count if plan.packed is None else len(plan.packed)
            staged = stage.rows[: kept_rows * states.shape[1]].view(kept_rows, states.shape[1])
            if plan.packed is None:
                staged.copy_(source)
            else:
                self._op(states, result, tables[-1], self._columns_of(self._boundaries), stage.rows, self._hidden)
            source = staged
        kept = buffer.states[: source.numel()].view(source.shape)
        self._to_host(source, kept, stage, buffer.states_event)
        return CapturedHiddenStates(kept, buffer.states_event, copied)

    def _take_stage(self) -> _Stage:
        """The stage used longest ago; the current stream waits until its states have left."""
        stage = self._stages[self._next]
        self._next = (self._next + 1) % _STAGES
        if stage.sent is not None:
            torch.cuda.current_stream(self._device).wait_event(stage.sent)
        return stage

    def _to_host(
        self, source: torch.Tensor, kept: torch.Tensor, stage: _Stage | None, arrived: torch.cuda.Event | None
    ) -> None:
        """Queue the copy to pinned memory, whose last one may still be under way on the other stream."""
        if self._bus is None or self._on_bus is None or arrived is None:
            kept.copy_(source)
            return
        passes = torch.cuda.current_stream(self._device)
        if stage is None or stage.filled is None:
            passes.wait_event(arrived)
            kept.copy_(source, non_blocking=True)
            arrived.record(passes)
            return
        stage.filled.record(passes)
        self._bus.wait_event(stage.filled)
        self._bus.wait_event(arrived)
        with self._on_bus:
            kept.copy_(source, non_blocking=True)
        arrived.record(self._bus)
        stage.sent = arrived

    def _load(self, plan: HiddenStateCopies, buffer: PinnedBuffer) -> list[torch.Tensor]:
        """The tables of rows on the device: of each copy, then of what is packed."""
        tables = [copy.rows for copy in plan.copies]
        if plan.packed is not None:
            tables.append(plan.packed)
        if not tables:
            return []
        count = sum(map(len, tables))
        if count > self._most:
            raise ValueError(f"states of {count} rows are to be copied, at most {self._most} can be")
        if len(buffer.state_rows) < count:
            buffer.reserve_state_rows(self._most, ENTRY)
        if buffer.states_event is not None:
            buffer.states_event.synchronize()  # comes after the copy of the table that was there
        rows, ends = buffer.state_rows.numpy(), [0]
        for table in tables:
            start, end = ends[-1], ends[-1] + len(table)
            ends.append(end)
            rows[start:end, : table.shape[1]] = table
        if plan.packed is not None:  # whose places are one behind the other
            size = len(plan.packed) * len(self._boundaries) * self._hidden
            rows[ends[-2] : count, -1] = np.arange(0, size, len(self._boundaries) * self._hidden)
        self._rows[:count].copy_(buffer.state_rows[:count], non_blocking=True)
        return [self._rows[start:end] for start, end in pairwise(ends)]

    def _columns_of(self, boundaries: tuple[int, ...]) -> torch.Tensor:
        if boundaries not in self._columns:
            columns = [self._boundaries.index(boundary) for boundary in boundaries]
            self._columns[boundaries] = torch.tensor(columns, dtype=torch.int32, device=self._device)
        return self._columns[boundaries]

    def meet(self) -> None:
        """Launch the op, so that no step waits for its being compiled: copies one row of one boundary."""
        if not self._copies_states:
            return
        states = torch.zeros(2, self._hidden, dtype=torch.bfloat16, device=self._device)
        zeros = torch.zeros(1, 2, dtype=torch.int32, device=self._device)
        row = torch.tensor([[0, -1, 0, 0]], device=self._device)
        self._op(states[:1], zeros, row, zeros[0, :1], states[1], self._hidden)
