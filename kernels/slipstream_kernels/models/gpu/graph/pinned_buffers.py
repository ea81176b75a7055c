"""Pinned memory through which passes travel: their plans to the device, their results back."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from slipstream_kernels.models.gpu.batch.pass_plan import Int32
from slipstream_kernels.models.gpu.graph.pass_buffers import PassBuffers
from slipstream_kernels.models.gpu.graph.pass_handle import PassHandle

IN_FLIGHT = 3
"""Passes that may be under way, or not asked for their results, before a launch has to wait."""


@dataclass(slots=True, eq=False)
class PinnedBuffer:
    """Room for the plan and the results of one pass at a time."""

    plan: torch.Tensor
    """int32 [words]"""
    words: Int32
    """its memory"""
    result: torch.Tensor
    """int32 [items, RESULT_WIDTH]"""
    awake: torch.Tensor
    """int32 [layers with experts, parts], experts that the pass woke"""
    again: torch.Tensor
    """int32 [items, RESULT_WIDTH], of what is decided again"""
    event: torch.cuda.Event | None
    """Comes when the pass's results are here."""
    again_begun: torch.cuda.Event | None
    """Comes when rows are sampled again; it has a time."""
    again_event: torch.cuda.Event | None
    """Comes when results are here that were decided again; it has a time."""
    states: torch.Tensor
    """bfloat16 [any], room for what a pass keeps at boundaries"""
    states_event: torch.cuda.Event | None
    """Comes when that is here."""
    copied_event: torch.cuda.Event | None
    """Comes when what a pass copies on the device is there."""
    state_rows: torch.Tensor
    """int64 [rows, any], room for the tables of what is copied"""
    ticket: PassHandle | None = None
    """Of the last pass."""
    parts: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)

    def part(self, end: int, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Words of the plan, and the same of `target`, int32 [end or more], which is the same at every call."""
        if end not in self.parts:
            self.parts[end] = self.plan[:end], target[:end]
        return self.parts[end]

    def receive(self, source: PassBuffers, items: int) -> torch.Tensor:
        """Queue the copy of what a pass says to the host; returns its results on the device, [items, RESULT_WIDTH]."""
        decided = source.result[:items]
        if items:
            self.result[:items].copy_(decided, non_blocking=True)
        if source.experts is not None:
            self.awake.copy_(source.experts.awake, non_blocking=True)
        if self.event is not None:
            self.event.record()
        return decided

    def receive_again(self, decided: torch.Tensor) -> None:
        """Queue the copy of results, int32 [items, RESULT_WIDTH], some of which were decided again."""
        self.again[: len(decided)].copy_(decided, non_blocking=True)
        if self.again_event is not None:
            self.again_event.record()

    def reserve_state_rows(self, rows: int, columns: int) -> None:
        """Room for tables of `rows` rows."""
        self.state_rows = torch.zeros(rows, columns, dtype=torch.int64, pin_memory=self.event is not None)


class PinnedBuffers:
    """Taken in turn."""

    def __init__(
        self, words: int, items: int, width: int, device: torch.device, awake: tuple[int, ...] = (0, 0)
    ) -> None:
        """awake: the shape of that of a `PinnedBuffer`."""
        cuda = device.type == "cuda"
        plans = [torch.zeros(words, dtype=torch.int32, pin_memory=cuda) for _ in range(IN_FLIGHT)]
        self._buffers = [
            PinnedBuffer(
                plan=plan,
                words=plan.numpy(),
                result=torch.zeros(items, width, dtype=torch.int32, pin_memory=cuda),
                awake=torch.zeros(awake, dtype=torch.int32, pin_memory=cuda and 0 not in awake),
                again=torch.zeros(items, width, dtype=torch.int32, pin_memory=cuda),
                event=torch.cuda.Event() if cuda else None,
                again_begun=torch.cuda.Event(enable_timing=True) if cuda else None,
                again_event=torch.cuda.Event(enable_timing=True) if cuda else None,
                states=torch.empty(0, dtype=torch.bfloat16),
                states_event=torch.cuda.Event() if cuda else None,
                copied_event=torch.cuda.Event() if cuda else None,
                state_rows=torch.zeros(0, 0, dtype=torch.int64),
            )
            for plan in plans
        ]
        self._next = 0
        self._pinned = cuda

    def reserve_states(self, size: int) -> None:
        """Room for states of `size` numbers a pass."""
        for buffer in self._buffers:
            if len(buffer.states) < size:
                buffer.states = torch.empty(size, dtype=torch.bfloat16, pin_memory=self._pinned)

    def take(self) -> PinnedBuffer:
        """The buffer used longest ago; its pass's results are moved out of it first, which waits if they are due."""
        buffer = self._buffers[self._next]
        self._next = (self._next + 1) % IN_FLIGHT
        if buffer.ticket is not None:
            buffer.ticket.results()
            buffer.ticket.drop_states()
            buffer.ticket = None
        return buffer
