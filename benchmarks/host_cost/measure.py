"""Rounds of a form at so many requests: processor time of each thread a round, by part, and calls of functions."""

from __future__ import annotations

import gc
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import itemgetter
from random import Random
from typing import Any
from unittest import mock

import torch

from benchmarks.host_cost.forms import facts_of, linked
from benchmarks.host_cost.parts import DRAFT_THREAD, LOOP_THREAD, Calls, split_by_part
from benchmarks.host_cost.silent_device import PROPOSER, SilentModel, silence, silent_head, silent_model
from benchmarks.local_engine.local_loop import EngineConfig, Job, LocalLoop, local_loop
from draft_service.worker.session_table import SessionTable
from slipstream_kernels.models.gpu.graph.pass_handle import PassHandle
from verify_service.engine.step_queue import StepQueue

PROMPT_TOKENS = 64
SETTLE_ROUNDS = 40
YOUNG_OBJECTS = 20_000
"""After how many new objects the garbage collector looks for cycles, as in the verify service."""


@dataclass(frozen=True, slots=True)
class HostCost:
    """Milliseconds of processor time a round, and calls of functions a request and round.

    loop, critical: of the loop's thread, the whole round, and from a step's results until the device has the next pass,
    0 where it has it by then; medians, and `loop_least` the 10th percentile. draft: of the draft service's thread.
    parts: by thread and part. functions: calls of each function a round. tokens: what a round brings a request on
    average, the same in runs that can be compared.
    """

    form: str
    requests: int
    loop: float
    loop_least: float
    critical: float
    draft: float
    calls: dict[str, float]
    parts: dict[str, dict[str, float]]
    functions: dict[str, dict[str, float]]
    tokens: float


@dataclass(slots=True)
class _Watch:
    """Marks rounds by their launches, on the loop's thread; `phase` is set by another."""

    calls: Calls
    phase: str = "settle"
    rounds: int = 0
    loop: list[float] = field(default_factory=list)
    critical: list[float] = field(default_factory=list)
    decided_at: float = 0.0
    begun_at: float = 0.0
    under_way: int = 0

    def queued(self) -> None:
        """The device has a pass; nothing was critical where it had another one all the time."""
        if self.phase == "time" and self.begun_at:
            self.critical.append(0.0 if self.under_way else 1e3 * (time.thread_time() - self.decided_at))
        self.under_way += 1

    def decided(self) -> None:
        """The host knows a pass's results."""
        self.under_way -= 1
        self.decided_at = time.thread_time()

    def launched(self) -> None:
        """A step has been launched."""
        now = time.thread_time()
        if self.phase == "time":
            self.rounds += 1
            if self.begun_at:
                self.loop.append(1e3 * (now - self.begun_at))
            self.begun_at = now
        elif self.phase == "split":
            self.rounds += 1
        elif self.phase == "count":
            self.calls.begin()
            self.rounds += 1
        elif self.phase == "end":
            self.calls.end()


def measure(form: str, requests: int, rounds: int, seconds: float, rows: int) -> HostCost:
    """Costs of `form` with so many requests whose trees have `rows` rows, over so many rounds of `seconds` each."""
    config = EngineConfig(
        num_pages=requests * 256,
        max_running=requests,
        max_nodes=rows,
        step_nodes=requests * rows,
        max_context=4096,
        feature_bytes=requests << 18,  # soon all of it has been written once
        adaptive=False,
    )
    pick = Random(0)
    torch.set_num_threads(1)  # copies are a GPU's
    with silence():
        model = silent_model(config, 3)
        head = silent_head(requests)
        with (
            linked(form, facts_of(model.config, config), config, head) as link,
            local_loop(model, config, link) as loop,
        ):
            prompts = [tuple(pick.randrange(10, 8000) for _ in range(PROMPT_TOKENS)) for _ in range(requests)]
            jobs = [Job(prompt, 3900, proposer=PROPOSER, rows=rows) for prompt in prompts]
            watch = _Watch(Calls())
            model.pass_seconds = seconds
            with _watched(watch), loop.decoding(jobs):
                return _measured(form, requests, rounds, watch, loop)


def _measured(form: str, requests: int, rounds: int, watch: _Watch, loop: LocalLoop) -> HostCost:
    _pass_rounds(watch, "time", SETTLE_ROUNDS)
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
    watch.loop.clear()
    watch.critical.clear()
    watch.begun_at = 0.0
    drafted, before = _thread_seconds(DRAFT_THREAD), loop.loop.state()
    timed = _pass_rounds(watch, "time", rounds)
    draft = 1e3 * (_thread_seconds(DRAFT_THREAD) - drafted) / timed
    after = loop.loop.state()
    tokens = (after.committed_tokens - before.committed_tokens) / (after.verify_steps - before.verify_steps)
    with split_by_part() as seconds:
        split = _pass_rounds(watch, "split", rounds)
    counted = _pass_rounds(watch, "count", max(10, rounds // 4))
    watch.phase = "end"
    counts = {thread: Counter(calls) for thread, calls in watch.calls.counts.items()}
    costs = sorted(watch.loop)
    return HostCost(
        form=form,
        requests=requests,
        loop=statistics.median(costs),
        loop_least=costs[len(costs) // 10],
        critical=statistics.median(watch.critical),
        draft=draft,
        calls={thread: sum(calls.values()) / counted / requests for thread, calls in counts.items()},
        parts={
            thread: {
                name: 1e3 * spent / split for name, spent in sorted(parts.items(), key=itemgetter(1), reverse=True)
            }
            for thread, parts in seconds.items()
            if thread in (LOOP_THREAD, DRAFT_THREAD)
        },
        functions={
            thread: {name: calls / counted for name, calls in found.most_common()} for thread, found in counts.items()
        },
        tokens=tokens,
    )


def _pass_rounds(watch: _Watch, phase: str, rounds: int) -> int:
    """Wait for so many rounds of this phase, or some more; return how many there were."""
    watch.rounds, watch.phase = 0, phase
    while watch.rounds < rounds:
        time.sleep(0.01)
    watch.phase = "between"
    return watch.rounds


def _by_size(parts: Mapping[str, float], factor: float) -> dict[str, float]:
    """The largest first."""
    return {name: factor * spent for name, spent in sorted(parts.items(), key=itemgetter(1), reverse=True)}


def _thread_seconds(name: str) -> float:
    """Processor seconds of a thread so far; 0 where there is none."""
    found = [thread.ident for thread in threading.enumerate() if thread.name == name]
    return time.clock_gettime(time.pthread_getcpuclockid(found[0])) if found and found[0] is not None else 0.0


@contextmanager
def _watched(watch: _Watch) -> Iterator[None]:
    """Tell the watch of rounds."""
    launch, results, asked = StepQueue.launch, PassHandle.results, SessionTable.wanted
    receive = SilentModel._receive  # noqa: SLF001 - what follows a pass on the device

    def launched(*args: Any, **kwargs: Any) -> None:
        launch(*args, **kwargs)
        watch.launched()

    def received(*args: Any, **kwargs: Any) -> Any:
        watch.queued()
        return receive(*args, **kwargs)

    def decided(ticket: PassHandle) -> Any:
        known = ticket._results is not None  # noqa: SLF001 - whether it was asked before
        try:
            return results(ticket)
        finally:
            if not known:
                watch.decided()

    def wanted(*args: Any, **kwargs: Any) -> Any:
        if watch.phase == "count":
            watch.calls.begin()
        elif watch.phase == "end":
            watch.calls.end()
        return asked(*args, **kwargs)

    with (
        mock.patch.object(StepQueue, "launch", launched),
        mock.patch.object(PassHandle, "results", decided),
        mock.patch.object(SilentModel, "_receive", received),
        mock.patch.object(SessionTable, "wanted", wanted),
    ):
        yield
