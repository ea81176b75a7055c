"""How soon acceptance is another drafter's once that one is asked to take over, by the verify service's counters."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from benchmarks.drafter_faults.services import START_SECONDS, Services
from benchmarks.lib.drafter_commands import guessing_command
from launcher.rollout.traffic_shift import swap
from launcher.services.process import ServiceProcess, Spawner

BEFORE_STEPS = 60
AFTER_STEPS = 200
WINDOW_STEPS = 8
"""Verify steps over which acceptance moves."""
NEAR = 0.1
"""Of the gap between both drafters: nearer to the new one's acceptance than this has come there."""
POLL_SECONDS = 0.004


class Sample(NamedTuple):
    """Counters of the verify service: its steps, and what these committed and accepted."""

    steps: int
    committed: int
    accepted: int


@contextmanager
def random_drafter(services: Services, name: str) -> Iterator[str]:
    """A draft service that guesses at random and has no request yet; yields its address."""
    command = guessing_command(services.cluster.verify_address, name, services.cluster.layout.environment)
    process = ServiceProcess(command, Spawner())
    try:
        services.wait_until(lambda: services.attached(process.pid), "that guesses did not attach", START_SECONDS)
        yield command.address
    finally:
        process.stop(20.0)


def accepted_at_steps(services: Services, address: str, *, share: float) -> dict[str, Any]:
    """Give the draft service at `address` its share under load, and follow the accepted tokens a request and step."""
    samples, over = list[Sample](), threading.Event()
    watching = threading.Thread(target=_watch, args=(services, samples, over))
    watching.start()
    try:
        _pass(samples, BEFORE_STEPS)
        asked = samples[-1].steps
        swap(address, "", share=share, seconds=120)
        moved = samples[-1].steps
        _pass(samples, AFTER_STEPS)
    finally:
        over.set()
        watching.join()
    return figures(samples, asked, moved)


def figures(samples: Sequence[Sample], asked: int, moved: int) -> dict[str, Any]:
    """Steps from the question until all requests had moved, and until acceptance was the new drafter's."""
    moving = list(_moving(samples))
    before = _rate([sample for sample in samples if sample.steps <= asked])
    last = samples[-1].steps
    after = _rate([sample for sample in samples if sample.steps >= moved + (last - moved) // 2])
    near = NEAR * abs(after - before)
    there = next((step for step, rate in moving if step > asked and abs(rate - after) <= near), None)
    return {
        "accepted_before": round(before, 3),
        "accepted_after": round(after, 3),
        "steps_until_all_moved": moved - asked,
        "steps_until_there": None if there is None else there - asked,
        "steps_behind_the_move": None if there is None else max(0, there - moved),
        "moving": [(step - asked, round(rate, 3)) for step, rate in moving if -20 <= step - asked <= 150][::2],
    }


def _moving(samples: Sequence[Sample]) -> Iterator[tuple[int, float]]:
    """At each sample, acceptance of the last steps, where one was taken that many steps before."""
    window: deque[Sample] = deque()
    for sample in samples:
        window.append(sample)
        while sample.steps - window[0].steps > WINDOW_STEPS:
            window.popleft()
        if sample.steps - window[0].steps == WINDOW_STEPS:
            yield sample.steps, _rate((window[0], sample))


def _rate(samples: Sequence[Sample]) -> float:
    """Accepted tokens a request and step between the first sample and the last."""
    accepted = samples[-1].accepted - samples[0].accepted
    rows = samples[-1].committed - samples[0].committed - accepted
    return accepted / max(1, rows)


def _watch(services: Services, samples: list[Sample], over: threading.Event) -> None:
    """Note the counters whenever a step has been made."""
    while not over.is_set():
        state = services.state()
        if not samples or state.steps > samples[-1].steps:
            samples.append(Sample(state.steps, state.committed_tokens, state.accepted_tokens))
        time.sleep(POLL_SECONDS)


def _pass(samples: Sequence[Sample], steps: int) -> None:
    """Return when so many steps more have been made; RuntimeError if none is for long."""
    limit = time.monotonic() + START_SECONDS
    while not samples:
        time.sleep(POLL_SECONDS)
    goal = samples[-1].steps + steps
    while samples[-1].steps < goal:
        if time.monotonic() > limit:
            raise RuntimeError(f"no {steps} steps in {START_SECONDS:g} s")
        time.sleep(POLL_SECONDS)
