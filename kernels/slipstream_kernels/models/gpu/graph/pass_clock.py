"""When passes begin and end, by the device's own clock."""

from __future__ import annotations

from typing import NamedTuple

import torch

MEASURED = 4
"""Passes whose times are kept, the newest included: more than may be under way, and one before them."""


class PassTimes:
    """Of one pass, read once it has ended. Until MEASURED - 1 further passes are launched."""

    __slots__ = ("_before", "_begun", "_ended")

    def __init__(self, before: torch.cuda.Event | None, begun: torch.cuda.Event, ended: torch.cuda.Event) -> None:
        """`before`: the end of the pass before, if there was one."""
        self._before, self._begun, self._ended = before, begun, ended

    def seconds(self) -> PassSeconds:
        """Wait for the end of the pass."""
        if not self._ended.query():  # a wait gives up the interpreter's lock
            self._ended.synchronize()
        idle = 0.0 if self._before is None else self._before.elapsed_time(self._begun)
        return PassSeconds(max(0.0, idle) / 1e3, self._begun.elapsed_time(self._ended) / 1e3)

    def behind(self, begun: torch.cuda.Event, ended: torch.cuda.Event) -> BehindSeconds:
        """Of what was queued behind the pass, and has ended: events that mark its begin and its end."""
        return BehindSeconds(self._ended.elapsed_time(begun) / 1e3, begun.elapsed_time(ended) / 1e3)


class BehindSeconds(NamedTuple):
    """What was queued behind a pass took.

    waited: from the end of the pass to its begin, in which the device had nothing else to do for the pass. busy: from
    its begin to its end.
    """

    waited: float
    busy: float


class PassSeconds(NamedTuple):
    """What a pass took.

    idle: from the end of the pass before to the begin of this one, drafts on the same device included. busy: from its
    begin to its end.
    """

    idle: float
    busy: float


class PassClock:
    """Marks begin and end of passes on the current stream of an NVIDIA GPU; other devices have no clock."""

    def __init__(self, device: torch.device) -> None:
        measured = MEASURED if device.type == "cuda" else 0
        self._begun = [torch.cuda.Event(enable_timing=True) for _ in range(measured)]
        self._ended = [torch.cuda.Event(enable_timing=True) for _ in range(measured)]
        self._passes = 0

    def begin(self) -> None:
        """Queue the begin of the next pass, behind all that it waits for."""
        if self._begun:
            self._begun[self._passes % MEASURED].record()

    def end(self) -> PassTimes | None:
        """Queue its end; None where there is no clock."""
        if not self._begun:
            return None
        now = self._passes % MEASURED
        self._ended[now].record()
        before = self._ended[(self._passes - 1) % MEASURED] if self._passes else None
        self._passes += 1
        return PassTimes(before, self._begun[now], self._ended[now])
