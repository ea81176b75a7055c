"""Models with windows, chunks, bounds, experts and sinks in the engine: trees and cached prefixes change no bit.

The reference decodes one token a pass, without the loop, the scheduler, the cache or the engine.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slipstream_kernels.models.checkpoint.expert_form import ExpertForm
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from support.families import EXPERTS, FORMS
from support.models import make_tiny_model
from support.request_mix import assert_equal, drafter, some_requests
from support.verify_loop import running_loop
from tests.verify_service.test_exactness import expected_of
from verify_service.core.engine_config import EngineConfig
from verify_service.core.expert_overlap import ExpertOverlap

TOKENS = 24
WIDE = EngineConfig(num_pages=128, max_running=8, prefill_chunk=128, step_nodes=64, max_nodes=32, adaptive=False)


@pytest.mark.parametrize("name", ["gemma2", "qwen3, window between", "qwen2_moe", "gpt_oss", "llama4"])
def test_every_way_to_run_on_a_cpu_gives_the_same(name: str, tmp_path: Path) -> None:
    """Windows of 20 tokens, and chunks of 16, begin in the cached part of a prompt, behind it, and among the nodes of a
    tree; some requests are preempted and come back to another chunk than they began in.
    """
    model = CausalLM.load(make_tiny_model(tmp_path / "model", **(FORMS | EXPERTS)[name]), threads=1)
    requests = some_requests(0.8, TOKENS)
    expected = [expected_of(model, one) for one in requests]
    for proposer in ("random", "oracle"):
        for settings in (WIDE, replace(WIDE, page_size=1, num_pages=640, prefill_chunk=7)):
            with running_loop(model, settings, drafter(proposer, requests, expected)) as runner:
                assert_equal(runner.run(requests), expected)
                again = [replace(one, key=one.key._replace(session_id=1)) for one in requests]
                assert_equal(runner.run(again), expected)
                state = runner.loop.state()
            assert state.prefix_hit_tokens > 100 and state.drafted_tokens > 100
            assert (state.accepted_tokens > 50) >= (proposer == "oracle")
            assert_counted(state.experts, model.config.form.experts)
        short = replace(WIDE, page_size=4, num_pages=38, prefill_chunk=16)
        with running_loop(model, short, drafter(proposer, requests, expected)) as runner:
            assert_equal(runner.run(requests), expected)
            assert runner.loop.state().preemptions > 0


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss", "llama4"])
def test_every_way_to_run_on_a_device_gives_the_same(name: str, tmp_path: Path) -> None:
    """The engine of a GPU, its kernels' twins in torch."""
    from support.device_reference import device_generate, twin_target  # loads triton

    target = twin_target(make_tiny_model(tmp_path / "model", **(FORMS | EXPERTS)[name]))
    requests = some_requests(0.0, 12)[::2]
    requests = [replace(one, sampling=replace(one.sampling, logprobs=None)) for one in requests]
    alone = target(replace(WIDE, max_running=1, step_nodes=0, prefix_cache=False))
    expected = [device_generate(alone, one) for one in requests]
    with running_loop(target, WIDE, drafter("oracle", requests, expected)) as runner:
        assert_equal(runner.run(requests), expected)
        state = runner.loop.state()
        assert state.accepted_tokens > 10
        assert_counted(state.experts, runner.model.config.form.experts)


def assert_counted(experts: ExpertOverlap | None, form: ExpertForm | None) -> None:
    """Each row has woken what it chooses, at most."""
    assert (experts is None) == (form is None)
    if experts is not None and form is not None:
        drafted = experts.counts["drafted"]
        assert 0 < drafted.awake <= drafted.rows * form.chosen * sum(form.layers)
        assert drafted.independent > 0
