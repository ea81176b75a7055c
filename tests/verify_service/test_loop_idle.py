"""What a loop does while it has no request."""

from __future__ import annotations

import threading
import time

import pytest

from slipstream_kernels.models.cpu.causal_lm import CausalLM
from support.verify_loop import running_loop
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import GenerationRequest, RequestKey, SamplingParams
from verify_service.model_runner.cpu_runner import CpuModelRunner

CONFIG = EngineConfig(num_pages=128, adaptive=False)
REQUEST = GenerationRequest(
    RequestKey(0, 0), tuple(range(40, 75)), arrival=0.0, sampling=SamplingParams(max_tokens=30, seed=1)
)


def test_a_loop_without_requests_works_ahead_until_one_comes(model: CausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    left, begun = [0], threading.Event()

    def prepare(engine: CpuModelRunner) -> bool:
        if left[0] > 0:
            begun.set()
        time.sleep(0.005)
        left[0] -= 1
        return left[0] > 0

    monkeypatch.setattr(CpuModelRunner, "prepare", prepare)
    with running_loop(model, CONFIG) as runner:
        left[0] = 40  # a drafter has come
        assert begun.wait(60.0)
        answer = runner.run([REQUEST])[0]
        assert answer.last.error is None
        assert left[0] > 0
        assert runner.loop.wait_idle(60.0)
        assert left[0] <= 0


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
