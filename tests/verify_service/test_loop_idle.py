"""What a loop does while it has no request."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from slipstream_kernels.models.cpu.causal_lm import CausalLM
from support.verify_loop import running_loop
from verify_service.core.draft_source import NoDrafts
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import GenerationRequest, RequestKey, SamplingParams
from verify_service.model_runner.cpu_runner import CpuModelRunner

CONFIG = EngineConfig(num_pages=128, adaptive=False)
REQUEST = GenerationRequest(
    RequestKey(0, 0), tuple(range(40, 75)), arrival=0.0, sampling=SamplingParams(max_tokens=30, seed=1)
)


def test_a_loop_without_requests_works_ahead_until_one_comes(model: CausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, begun, answered, again = (threading.Event() for _ in range(4))

    def prepare(engine: CpuModelRunner) -> bool:
        if wanted.is_set():
            begun.set()
        if answered.is_set():
            again.set()
        time.sleep(0.005)
        return wanted.is_set()

    monkeypatch.setattr(CpuModelRunner, "prepare", prepare)
    with running_loop(model, CONFIG) as runner:
        wanted.set()  # a drafter has come
        assert begun.wait(60.0)
        answer = runner.run([REQUEST])[0]
        assert answer.last.error is None
        answered.set()
        assert again.wait(60.0)
        assert not runner.loop.wait_idle(0.0)
        wanted.clear()
        assert runner.loop.wait_idle(60.0)


def test_what_is_wanted_before_the_start_is_done_before_any_request(
    model: CausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, threads = [5], set[str]()

    def prepare(engine: CpuModelRunner) -> bool:
        threads.add(threading.current_thread().name)
        left[0] -= 1
        return left[0] > 0

    monkeypatch.setattr(CpuModelRunner, "prepare", prepare)
    with running_loop(model, CONFIG):
        assert left[0] <= 0
        assert threading.current_thread().name in threads


def test_work_ahead_that_fails_costs_nothing(model: CausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(engine: CpuModelRunner) -> bool:
        raise RuntimeError("prepare")

    monkeypatch.setattr(CpuModelRunner, "prepare", prepare)
    with running_loop(model, CONFIG) as runner:
        assert runner.loop.wait_idle(60.0)
        assert runner.run([REQUEST])[0].last.error is None


class Asking(NoDrafts):
    """A source whose drafter wants states, once it has come."""

    boundaries: tuple[int, ...] = ()

    def wanted_boundaries(self) -> tuple[int, ...]:
        return self.boundaries


def test_what_a_drafter_wants_is_prepared_until_all_of_it_is_done(
    model: CausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end, source = threading.Event(), threading.Event(), Asking()

    def prepare(engine: CpuModelRunner) -> bool:
        if source.boundaries:
            begun.set()
            assert may_end.wait(60.0)
        return False

    monkeypatch.setattr(CpuModelRunner, "prepare", prepare)
    with running_loop(model, CONFIG, source) as runner:
        assert not runner.loop.prepares(())
        assert runner.loop.prepares((0, 1))
        source.boundaries = (0, 1)
        assert begun.wait(60.0)
        assert runner.loop.prepares((0, 1))
        may_end.set()
        assert runner.loop.wait_idle(60.0)
        assert not runner.loop.prepares((0, 1))
        assert runner.loop.prepares((2,))


def test_nothing_is_prepared_for_while_requests_run(model: CausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_loop(model, CONFIG) as runner:
        busy = replace(runner.loop.state(), running=1)
        monkeypatch.setattr(runner.loop, "_state", busy)
        assert not runner.loop.prepares((0, 1))
        monkeypatch.setattr(runner.loop, "_state", replace(busy, running=0, draining=True))
        assert not runner.loop.prepares((0, 1))
        monkeypatch.setattr(runner.loop, "_state", replace(busy, running=0))
        assert runner.loop.prepares((0, 1))
