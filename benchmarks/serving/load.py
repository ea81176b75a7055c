"""Shapes of load: so many clients at once, so many requests a second, or a crowd that grows and shrinks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Loop:
    """Clients that ask one request after another, each in its own time: seconds from the begin, first and last.

    The clients share one row of prompts, which begins again after its end. Each client asks at least one request and
    begins none after its time; all end after `requests` requests.
    """

    clients: tuple[tuple[float, float], ...]
    requests: int

    def part(self, index: int, parts: int) -> Loop:
        """What one of several processes plays of it."""
        return Loop(self.clients[index::parts], self.requests)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Requests that are sent when they are due, whatever has been answered: seconds from the begin, and the prompt."""

    arrivals: tuple[tuple[float, int], ...]

    def part(self, index: int, parts: int) -> Schedule:
        """What one of several processes plays of it."""
        return Schedule(self.arrivals[index::parts])


LoadParts = Loop | Schedule


@dataclass(frozen=True, slots=True)
class Closed:
    """A closed loop of `concurrency` clients; with `per_client` at most so many requests for each of them."""

    concurrency: int
    per_client: int = 0

    @property
    def name(self) -> str:
        """As tables have it."""
        return str(self.concurrency)

    @property
    def seconds(self) -> float | None:
        """As long as it takes."""
        return None

    def plan(self, prompts: int) -> Loop:
        """Every prompt once."""
        requests = min(prompts, self.per_client * self.concurrency) if self.per_client else prompts
        return Loop(((0.0, math.inf),) * min(self.concurrency, requests), requests)


@dataclass(frozen=True, slots=True)
class Open:
    """An open loop: Poisson arrivals by `seed`, `rate` a second in the mean, none after `longest` seconds."""

    rate: float
    seed: int = 0
    longest: float = math.inf

    @property
    def name(self) -> str:
        """As tables have it."""
        return f"{self.rate:g}/s"

    @property
    def seconds(self) -> float | None:
        """As long as it takes."""
        return None

    def plan(self, prompts: int) -> Schedule:
        """Every prompt once. The first is due at once, so that there is always one."""
        draw, at = Random(f"{self.seed} {self.rate:g}"), 0.0
        arrivals: list[tuple[float, int]] = []
        for prompt in range(prompts):
            if at > self.longest:
                break
            arrivals.append((at, prompt))
            at += draw.expovariate(self.rate)
        return Schedule(tuple(arrivals))


@dataclass(frozen=True, slots=True)
class Ramp:
    """A closed loop whose clients become `peak` from 1 and 1 again, evenly, within `length` seconds."""

    peak: int
    length: float

    @property
    def name(self) -> str:
        """As tables have it."""
        return f"1 to {self.peak} to 1 in {self.length:g} s"

    @property
    def seconds(self) -> float | None:
        """What is looked at second by second; answers under way then are still awaited."""
        return self.length

    def plan(self, prompts: int) -> Loop:
        """Prompts over and over."""
        del prompts
        steps = max(self.peak - 1, 1)
        on = [self.length / 2 * index / steps for index in range(self.peak)]
        return Loop(tuple((at, self.length - at) for at in on), 2**62)


Load = Closed | Open | Ramp


def loads_of(concurrency: Sequence[int], per_client: int, rates: Sequence[float], longest: float, ramp: Ramp | None,
             seed: int) -> list[Load]:  # fmt: skip
    """All that is asked for, in the order in which it is measured."""
    loads: list[Load] = [Closed(each, per_client) for each in concurrency]
    loads += [Open(rate, seed, longest) for rate in rates]
    return loads + ([ramp] if ramp else [])
