"""Pinned memory in which rounds' plans are written, on their way to the device."""

from __future__ import annotations

import torch

from slipstream_kernels.models.gpu.draft.round.plan_rows import Int32

_PLANS = 3
"""A text's in the background, one's before a round, and the round's: none of them waits for the one before."""


class HostPlans:
    """Plans taken in turn. One is written again once the device has read what it held."""

    def __init__(self, words: int, device: torch.device) -> None:
        """Of so many int32 words each."""
        cuda = device.type == "cuda"
        self._plans = [torch.zeros(words, dtype=torch.int32, pin_memory=cuda) for _ in range(_PLANS)]
        self._words = [plan.numpy() for plan in self._plans]
        self._read = [torch.cuda.Event() for _ in self._plans] if cuda else []
        self.turn = 0
        """The plan that is written now, below the number of plans."""

    @property
    def words(self) -> Int32:
        """Of this plan."""
        return self._words[self.turn]

    def take(self) -> None:
        """Go on to the next plan; waits until the device has read it."""
        self.turn = (self.turn + 1) % _PLANS
        if self._read:
            self._read[self.turn].synchronize()

    def send(self, target: torch.Tensor, words: int) -> None:
        """Queue the copy of its first `words` to `target`, int32 [words or more], on its device's current stream."""
        target[:words].copy_(self._plans[self.turn][:words], non_blocking=True)
        if self._read:
            self._read[self.turn].record(torch.cuda.current_stream(target.device))
