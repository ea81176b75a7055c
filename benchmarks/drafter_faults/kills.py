"""SIGKILL to the drafter at work, again and again, and what the services and their clients did about each of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.drafter_faults.services import LogLine, Services
from benchmarks.drafter_faults.traffic import Pause, about
from benchmarks.lib.percentiles import middle

LOG_SECONDS = (-0.1, 0.5)
"""Of the services' logs, what they wrote in this span about a kill."""
LONGEST_SECONDS = 2.0
"""After a kill, within which the longest pause of most streams is looked for."""
_LINES, _WORDS = 12, 140
_CONTROL_GROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Moment:
    """The verify service's counters, and milliseconds for which the machine has let processes wait, at some time."""

    at: float
    """time.perf_counter() in seconds"""
    steps: int
    waits: int
    misses: int
    throttled_ms: float
    """by the control group's limit of processor time"""
    starved_ms: float
    """in which some process was ready to run and no processor free"""

    @classmethod
    def of(cls, services: Services) -> Moment:
        state = services.state()
        return cls(
            time.perf_counter(), state.steps, state.draft_waits, state.draft_misses, _throttled_ms(), _starved_ms()
        )

    def since(self, before: Moment) -> dict[str, float]:
        """What has come on top since then."""
        return {
            "ms": round(1000 * (self.at - before.at), 1),
            "steps": self.steps - before.steps,
            "waits": self.waits - before.waits,
            "trees_missed": self.misses - before.misses,
            "throttled_ms": round(self.throttled_ms - before.throttled_ms, 1),
            "starved_ms": round(self.starved_ms - before.starved_ms, 1),
        }


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill. `at` is the signal's time.perf_counter(), `wall` its time.time(), both in seconds."""

    at: float
    wall: float
    drafted_for: int
    stood_by: int
    """drafters attached besides"""
    before: Moment
    over: Moment
    """its attachment is"""
    again: Moment | None = None
    """a tree of another one has been accepted; None where that was not seen"""

    def facts(self, pauses: Sequence[Pause], step: float, log: Sequence[LogLine]) -> dict[str, Any]:
        """What there is to know of it, in milliseconds after the signal; `step` is a usual pause in seconds.

        `pauses` are those of all streams by their begin.
        `longest` is the longest pause of the streams' median within a while, wherever that lies: those that began
        together count as one. Positions are medians.
        """
        hit = about(pauses, self.at)
        later = [each for each in pauses if each.end > self.at and each.begin < self.at + LONGEST_SECONDS]
        return {
            "drafted_for": self.drafted_for,
            "stood_by": self.stood_by,
            "added_ms": round(1000 * max(0.0, middle([pause.seconds for pause in hit]) - step), 2),
            "pause": self._place(hit),
            "longest": self._place(max(_together(later, step), key=_median, default=[])),
            "until_its_attachment_was_over": self.over.since(self.before),
            "until_trees_were_accepted_again": None if self.again is None else self.again.since(self.over),
            "log": [f"{1000 * (line.wall - self.wall):+.0f} {line.text[:_WORDS]}" for line in self._about(log)][
                :_LINES
            ],
        }

    def _place(self, pauses: Sequence[Pause]) -> dict[str, float]:
        if not pauses:
            return {}
        return {
            "streams": len(pauses),
            "ms": round(1000 * _median(pauses), 2),
            "from_ms": round(1000 * (middle([pause.begin for pause in pauses]) - self.at), 1),
            "to_ms": round(1000 * (middle([pause.end for pause in pauses]) - self.at), 1),
        }

    def _about(self, log: Sequence[LogLine]) -> Iterator[LogLine]:
        low, high = (self.wall + seconds for seconds in LOG_SECONDS)
        return (line for line in log if low <= line.wall <= high)


def kill_one(services: Services) -> Kill:
    """SIGKILL the draft service that drafts for most requests, and return when its attachment is over."""
    requests: dict[int, int] = {}
    for drafter in services.state().drafters:
        requests[drafter.process_id] = requests.get(drafter.process_id, 0) + drafter.requests
    before = Moment.of(services)
    pid, at, wall = services.kill_draft(requests)
    return Kill(at, wall, requests.get(pid, 0), len(requests.keys() - {pid}), before, Moment.of(services))


def line_of(number: int, facts: dict[str, Any]) -> str:
    """One kill's facts, without the log."""
    over, again = facts["until_its_attachment_was_over"], facts["until_trees_were_accepted_again"]
    waits = "{waits} waits, {trees_missed} trees missed"
    where = "; ".join(
        f"{name} {place['ms']} ms of {place['streams']} streams at {place['from_ms']:+} to {place['to_ms']:+}"
        for name in ("pause", "longest")
        if (place := facts[name])
    )
    parts = [
        f"kill {number}: added {facts['added_ms']} ms, {facts['drafted_for']} requests, {facts['stood_by']} stood by",
        where,
        f"over after {over['ms']} ms, {over['steps']} steps, {waits.format(**over)}",
        f"throttled {over['throttled_ms']} ms, starved {over['starved_ms']} ms",
    ]
    if again is not None:
        parts.append(f"then {again['ms']} ms, {waits.format(**again)}")
    return "; ".join(part for part in parts if part)


def _together(pauses: Sequence[Pause], step: float) -> Iterator[list[Pause]]:
    """Those that began within a step of one another, without what fewer than half of the streams had."""
    least = len({pause.stream for pause in pauses}) / 2
    group: list[Pause] = []
    for pause in pauses:
        if group and pause.begin - group[0].begin > step:
            if len(group) >= least:
                yield group
            group = []
        group.append(pause)
    if group and len(group) >= least:
        yield group


def _median(pauses: Sequence[Pause]) -> float:
    return middle([pause.seconds for pause in pauses])


def _throttled_ms() -> float:
    """0 where the control group has no limit, or cannot be seen."""
    with suppress(OSError, ValueError, KeyError):
        text = (_CONTROL_GROUP / "cpu.stat").read_text()
        return int(dict(line.split() for line in text.splitlines())["throttled_usec"]) / 1000
    return 0.0


def _starved_ms() -> float:
    """Of the control group, else of the machine; 0 where neither tells."""
    for path in (_CONTROL_GROUP / "cpu.pressure", Path("/proc/pressure/cpu")):
        with suppress(OSError, ValueError, IndexError):
            return int(path.read_text().splitlines()[0].rpartition("total=")[2]) / 1000
    return 0.0
