"""Splits a thread's processor time by the part of a round that it is spent in, and counts calls of functions."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from types import FrameType
from typing import Any, Final, NamedTuple
from unittest import mock

from draft_service.proposers.eagle.gpu import GpuEagleProposer
from draft_service.verify_link.device_queue import DevicePassQueue
from draft_service.verify_link.shm_transport import ShmExchange
from draft_service.worker.session_table import SessionTable
from draft_service.worker.worker import Worker
from verify_service.draft_link.draft_link import DraftLink
from verify_service.engine.hidden_state_capture import HiddenStateCapture
from verify_service.engine.step_queue import StepQueue
from verify_service.engine.verify_loop import VerifyLoop
from verify_service.model_runner.gpu_runner import GpuModelRunner
from verify_service.scheduler.scheduler import Scheduler
from verify_service.speculation.controller import SpeculationController

LOOP_THREAD, DRAFT_THREAD = "verify-loop", "draft-worker"


class Part(NamedTuple):
    """Calls of this method count as this part, but for what other parts take of them."""

    owner: type
    method: str
    name: str


PARTS: Final = (
    Part(StepQueue, "decide", "results read"),
    Part(VerifyLoop, "_commit", "tokens committed"),
    Part(HiddenStateCapture, "_taken", "states taken"),
    Part(Scheduler, "schedule", "schedule"),
    Part(SpeculationController, "attach_promised", "trees attached"),
    Part(SpeculationController, "attach_trees", "trees attached"),
    Part(HiddenStateCapture, "_routes", "states routed"),
    Part(GpuModelRunner, "launch", "launch"),
    Part(StepQueue, "read_trees", "trees read"),
    Part(VerifyLoop, "_write_outputs", "outputs"),
    Part(VerifyLoop, "_snapshot", "outputs"),
    Part(SpeculationController, "observe_step", "learning"),
    Part(SpeculationController, "send_commits", "commits: budgets"),
    Part(DraftLink, "commit", "commits: slots"),
    Part(HiddenStateCapture, "keep", "states kept"),
    Part(StepQueue, "enqueue_drafts", "draft behind: asked"),
    Part(DraftLink, "collect", "trees told to slots"),
    Part(DraftLink, "enqueue_draft", "draft behind: slots"),
    Part(GpuEagleProposer, "follow", "draft behind: round"),
    Part(GpuEagleProposer, "begin", "sessions: asked"),
    Part(Worker, "_take", "sessions: records"),
    Part(Worker, "_handle", "sessions: told"),
    Part(Worker, "_answers", "sessions: answers"),
    Part(ShmExchange, "receive", "ring read"),
    Part(SessionTable, "followed", "draft behind: sessions"),
    Part(DevicePassQueue, "publish", "draft behind: published"),
)
"""Of a round, in no order. Those of `DRAFT_THREAD` are the draft service's where it has threads of its own."""


class Split(threading.local):
    """Processor seconds of the present thread, by part."""

    def __init__(self, all_seconds: dict[str, dict[str, float]]) -> None:
        self.seconds = all_seconds.setdefault(threading.current_thread().name, defaultdict(float))
        self.stack: list[str] = []
        self.since = 0.0

    def enter(self, name: str) -> None:
        """What follows is of this part."""
        now = time.thread_time()
        if self.stack:
            self.seconds[self.stack[-1]] += now - self.since
        self.stack.append(name)
        self.since = now

    def leave(self) -> None:
        """What follows is of the part around."""
        now = time.thread_time()
        self.seconds[self.stack.pop()] += now - self.since
        self.since = now


class Calls:
    """Counts calls of functions of Python and of C on threads that ask for it."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = {}

    def begin(self) -> None:
        """Count those of the present thread, if they are not counted yet."""
        counts = self.counts.get(threading.current_thread().name)
        if counts is None:
            counts = self.counts[threading.current_thread().name] = Counter()
            sys.setprofile(_counter(counts))

    @staticmethod
    def end() -> None:
        """Count those of the present thread no more."""
        sys.setprofile(None)


def _counter(counts: Counter[str]) -> Callable[[FrameType, str, object], None]:
    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            code = frame.f_code
            counts[f"{code.co_filename.rpartition('/')[2]}:{code.co_qualname}"] += 1
        elif event == "c_call":
            counts["C"] += 1

    return count


@contextmanager
def split_by_part(parts: Sequence[Part] = PARTS) -> Iterator[dict[str, dict[str, float]]]:
    """Within it the processor time of parts is added up: by thread, then by part, seconds."""
    seconds: dict[str, dict[str, float]] = {}
    split = Split(seconds)
    with ExitStack() as stack:
        for owner, method, name in parts:
            stack.enter_context(mock.patch.object(owner, method, _timed(getattr(owner, method), name, split)))
        yield seconds


def _timed(method: Callable[..., Any], name: str, split: Split) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        split.enter(name)
        try:
            return method(*args, **kwargs)
        finally:
            split.leave()

    return call
