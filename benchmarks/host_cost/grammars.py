r"""What grammars cost a step of many requests on a GPU's host: processor time, calls, and waits of a made-up device.

    python -m benchmarks.host_cost.grammars [--requests 64] [--rounds 3] [--threads 8] [--strays 0.45]

The verify loop and the host's side of the model run as in serving, over a device whose kernels do nothing
(`answering_device.py`); each request has a schema of its own. Lines: plain decoding and what the grammar drafts, at
T = 0 and with top-p. Columns, a step of so many requests or fewer, as answers end:

    loop ms      processor time of the loop's thread, the made-up device's included
    of it        drafts: forced text and pruned trees; masks: computing and sending them; checks: the rest of decisions
    calls        of Python's functions that have to do with grammars, a request and step, which no neighbour on the
                 machine disturbs
    device %     what the made-up device waits for masks, of the time of its passes; on few cores, where passes do not
                 take the host's threads less of a processor, it says little
    second ways  steps of a hundred in which rows are sampled again once results are known
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Any, Final
from unittest import mock

import torch

from benchmarks.host_cost.answering_device import (
    AnsweringModel,
    HeldJob,
    answering_loop,
    answering_model,
    answers_to,
    demo_tokenizer,
    held_jobs,
)
from benchmarks.host_cost.measure import YOUNG_OBJECTS
from benchmarks.host_cost.parts import LOOP_THREAD, Part, split_by_part
from benchmarks.lib.report import machine, markdown_table, write_json
from benchmarks.local_engine.local_loop import EngineConfig, LocalLoop
from verify_service.core.grammar_seconds import GrammarSeconds
from verify_service.core.request import RequestKey, StepOutput
from verify_service.engine.sink import Sink
from verify_service.engine.step_queue import StepQueue
from verify_service.grammar.compiler import GrammarCompiler
from verify_service.model_runner.gpu_constraint import GpuConstraint
from verify_service.model_runner.gpu_runner import GpuModelRunner
from verify_service.speculation.grammar_trees import GrammarTrees

PLAIN, DRAFTED = "held", "held, grammar drafts"
LAWS: Final = {"0": {"temperature": 0.0}, "1, top-p 0.9": {"temperature": 1.0, "top_p": 0.9}}
_PARTS: Final = (
    Part(GrammarTrees, "attach", "drafts"),
    Part(GpuConstraint, "begin_masks", "masks"),
    Part(GpuConstraint, "send", "masks"),
    Part(GpuConstraint, "results", "checks"),
    Part(GpuConstraint, "follow", "checks"),
    Part(GpuModelRunner, "launch", "others"),
    Part(AnsweringModel, "sample_masked", "device"),
    Part(AnsweringModel, "decide_again", "device"),
)
_COUNTED: Final = (
    "/verify_service/grammar/",
    "/masks_ahead.py",
    "/gpu_constraint.py",
    "/constrained_path.py",
    "/grammar_trees.py",
)
_TOKENS: Final = 96
_SWITCH_SECONDS: Final = 5e-4


@dataclass(frozen=True, slots=True)
class StepCost:
    """Means over steps. Milliseconds; calls a request and step; waits in parts of the device's time."""

    way: str
    law: str
    steps: int
    tokens: float
    drafted: float
    accepted: float
    loop_ms: float
    drafts_ms: float
    masks_ms: float
    checks_ms: float
    calls: float
    waits: float
    second_ways: float


@contextmanager
def cores(threads: int) -> Iterator[None]:
    """Within it services take the machine for one that has a processor for each of so many threads of llguidance's."""
    with mock.patch.object(os, "sched_getaffinity", return_value=set(range(threads + 1))):
        yield


class Calls:
    """Counts the loop's calls of functions that have to do with grammars, once it is asked to."""

    def __init__(self) -> None:
        self.wanted = False
        self.counts: Counter[str] = Counter()

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        """As `sys.setprofile` takes it."""
        if event == "call" and any(part in frame.f_code.co_filename for part in _COUNTED):
            self.counts[frame.f_code.co_qualname] += 1

    @contextmanager
    def on_loops(self) -> Iterator[None]:
        """Within it loops look at each launch whether they are to be counted."""
        launch = StepQueue.launch

        def counted(*args: Any, **kwargs: Any) -> None:
            sys.setprofile(self.profile if self.wanted else None)
            launch(*args, **kwargs)

        with mock.patch.object(StepQueue, "launch", counted):
            yield


class Clients:
    """A thread of Python that serves clients: it works so many seconds for each output that a loop delivers."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._outputs: SimpleQueue[int] = SimpleQueue()

    def _serve(self) -> None:
        while (outputs := self._outputs.get()) >= 0:
            until = time.thread_time() + outputs * self._seconds
            while time.thread_time() < until:
                sum(range(100))

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Within it outputs of loops are served."""
        deliver = Sink.deliver

        def delivered(sink: Sink, outputs: list[StepOutput]) -> None:
            deliver(sink, outputs)
            if self._seconds and outputs:
                self._outputs.put(len(outputs))

        thread = threading.Thread(target=self._serve, name="clients")
        thread.start()
        try:
            with mock.patch.object(Sink, "deliver", delivered):
                yield
        finally:
            self._outputs.put(-1)
            thread.join()


def measure(
    model: AnsweringModel, loop: LocalLoop, jobs: Sequence[HeldJob], answers: Sequence[Sequence[int]],
    options: argparse.Namespace, calls: Calls, names: tuple[str, str],
) -> StepCost:  # fmt: skip
    """Costs of these requests, so many at a time."""
    run = _Run(model, loop, jobs, answers, options.requests)
    run.go(1)
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
    model.second_ways, before, seconds, worked = 0, loop.loop.state(), _loop_seconds(), _worked(loop)
    with split_by_part(_PARTS) as split:
        run.go(options.rounds)
    after, seconds = loop.loop.state(), _loop_seconds() - seconds
    worked = _worked(loop) - worked
    steps, second_ways = after.steps - before.steps, model.second_ways
    calls.counts.clear()
    calls.wanted = True
    counted, verified = loop.loop.state(), loop.loop.state().verify_steps
    run.go(1)
    calls.wanted = False
    verified = loop.loop.state().verify_steps - counted.verify_steps
    parts = split.get(LOOP_THREAD, {})
    waits = _grammar(after).masks - _grammar(before).masks
    return StepCost(
        *names,
        steps=steps,
        tokens=(after.committed_tokens - before.committed_tokens) / steps,
        drafted=(after.drafted_tokens - before.drafted_tokens) / steps,
        accepted=(after.accepted_tokens - before.accepted_tokens) / steps,
        loop_ms=1e3 * seconds / steps,
        drafts_ms=1e3 * parts.get("drafts", 0.0) / steps,
        masks_ms=1e3 * parts.get("masks", 0.0) / steps,
        checks_ms=1e3 * parts.get("checks", 0.0) / steps,
        calls=sum(calls.counts.values()) / verified,
        waits=waits / worked,
        second_ways=second_ways / steps,
    )


class _Run:
    """Puts requests to a loop, so many at a time, and looks whether answers are those that are known."""

    def __init__(
        self, model: AnsweringModel, loop: LocalLoop, jobs: Sequence[HeldJob], answers: Sequence[Sequence[int]],
        requests: int,
    ) -> None:  # fmt: skip
        self._model, self._loop, self._jobs, self._answers, self._requests = model, loop, jobs, answers, requests
        self._keys = 0

    def go(self, rounds: int) -> None:
        """All requests, so many times."""
        wanted = [*self._answers] * rounds
        first = self._loop.next_key
        self._model.answers = {RequestKey(0, first + number): answer for number, answer in enumerate(wanted)}
        got = self._loop.run([*self._jobs] * rounds, self._requests)
        assert [answer.token_ids for answer in got] == wanted, "a grammar has changed what is known"


def _grammar(state: Any) -> GrammarSeconds:
    return state.grammar_seconds or GrammarSeconds()


def _worked(loop: LocalLoop) -> float:
    """Seconds of passes so far, which goes on growing."""
    seconds = loop.loop.state().step_seconds
    return 0.0 if seconds is None else seconds.total


def _loop_seconds() -> float:
    ident = next(thread.ident for thread in threading.enumerate() if thread.name == LOOP_THREAD)
    assert ident is not None
    return time.clock_gettime(time.pthread_getcpuclockid(ident))


def main() -> None:
    """Print the table."""
    options = _options()
    sys.setswitchinterval(_SWITCH_SECONDS)
    torch.set_num_threads(1)
    tokenizer = demo_tokenizer()
    grammars, calls = GrammarCompiler(lambda: tokenizer), Calls()
    jobs = held_jobs(options.requests, options.seed, _TOKENS)
    answers = answers_to(jobs, grammars)
    config = EngineConfig(num_pages=64 * options.requests, max_running=options.requests, max_context=1024)
    costs = []
    with cores(options.threads), calls.on_loops(), Clients(1e-6 * options.serving_us).serving():
        model = answering_model(config)
        model.strays, model.again_seconds, model.pass_factor = options.strays, 1e-4, options.pass_factor
        with answering_loop(model, config, grammars) as loop:
            for way in (PLAIN, DRAFTED):
                for law, sampling in LAWS.items():
                    asked = [replace(job, drafted=way == DRAFTED, **sampling) for job in jobs]  # type: ignore[arg-type]
                    costs.append(measure(model, loop, asked, answers, options, calls, (way, law)))
    names = "way,T,tokens,drafted,loop ms,drafts,masks,checks,calls,device %,second ways"
    rows = [
        [each.way, each.law, each.tokens, each.drafted, each.loop_ms, each.drafts_ms, each.masks_ms, each.checks_ms,
         each.calls, 100 * each.waits, 100 * each.second_ways]
        for each in costs
    ]  # fmt: skip
    print(markdown_table(names.split(","), rows))
    if options.output:
        write_json(options.output, {"machine": machine(), "costs": [asdict(each) for each in costs]})


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=64, help="at once, and schemas (64)")
    parser.add_argument("--rounds", type=int, default=3, help="of all requests that are measured (3)")
    parser.add_argument("--threads", type=int, default=8, help="llguidance's, whatever the machine has (8)")
    parser.add_argument("--strays", type=float, default=0.45, help="part of unmasked tokens that are illegal (0.45)")
    parser.add_argument("--pass-factor", type=float, default=1.4, help="times the made-up device's times (1.4)")
    parser.add_argument(
        "--serving-us", type=float, default=40.0, help="of a thread that serves clients, for each output (40)"
    )
    parser.add_argument("--seed", type=int, default=21, help="of schemas (21)")
    parser.add_argument("--output", type=Path, help="file for the figures")
    return parser.parse_args()


if __name__ == "__main__":
    main()
