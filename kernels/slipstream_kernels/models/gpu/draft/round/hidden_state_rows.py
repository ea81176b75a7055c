"""The target's states on their way into a round, from the host's memory or from the device's."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class HiddenStateInputs:
    """Gathers states, bfloat16 [rows, width] each, into the start of one tensor on the device."""

    def __init__(self, target: torch.Tensor) -> None:
        self._target = target
        self._staged = target
        if target.is_cuda:
            self._staged = torch.empty(target.shape, dtype=target.dtype, pin_memory=True)

    def load(self, parts: Sequence[torch.Tensor]) -> None:
        """Queue the copies, on the current stream. The parts must live, and no other call come, until they are done."""
        if all(part.device == self._target.device for part in parts):
            torch.cat(list(parts), out=self._target[: sum(map(len, parts))])
            return
        begin = staged = 0
        for part in parts:
            end = begin + len(part)
            if part.device.type == "cpu":
                self._staged[begin:end].copy_(part)
                staged = end
            begin = end
        # One copy of the staged rows, with holes that the other parts then fill.
        self._target[:staged].copy_(self._staged[:staged], non_blocking=True)
        begin = 0
        for part in parts:
            end = begin + len(part)
            if part.device.type != "cpu":
                self._target[begin:end].copy_(part, non_blocking=True)
            begin = end
