"""A KV cache of 8 bits in the engine: trees, chunks, cached prefixes and preemption change no bit.

The reference decodes one token a pass, without the loop, the scheduler, the cache or the engine.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.models.kv_form import KVForm
from support.request_mix import assert_equal, drafter, some_requests
from support.verify_loop import running_loop
from tests.verify_service.test_exactness import expected_of
from verify_service.core.engine_config import EngineConfig

TOKENS = 24
WIDE = EngineConfig(num_pages=128, max_running=8, prefill_chunk=128, step_nodes=64, max_nodes=32, adaptive=False)
FORMS = {"own": KVForm(fp8=True), "fixed": KVForm(fp8=True, scales=((0.0625, 0.01171875),) * 2)}


@pytest.mark.parametrize("form", FORMS)
def test_every_way_to_run_on_a_cpu_gives_the_same(form: str, tiny_model: Path) -> None:
    model = CausalLM.load(tiny_model, threads=1, kv_form=FORMS[form])
    requests = some_requests(0.8, TOKENS)
    expected = [expected_of(model, one) for one in requests]
    longest = max(len(one.prompt_token_ids) + TOKENS for one in requests)
    preemptions = 0
    for proposer in ("random", "oracle"):
        for settings in (WIDE, replace(WIDE, page_size=1, num_pages=longest + longest // 4, prefill_chunk=7)):
            with running_loop(model, settings, drafter(proposer, requests, expected)) as runner:
                assert_equal(runner.run(requests), expected)
                again = [replace(one, key=one.key._replace(session_id=1)) for one in requests]
                assert_equal(runner.run(again), expected)
                state = runner.loop.state()
            preemptions += state.preemptions
            assert state.prefix_hit_tokens > 50 and state.drafted_tokens > 100
            assert (state.accepted_tokens > 50) >= (proposer == "oracle")
    assert preemptions > 0


@pytest.mark.parametrize("form", FORMS)
def test_every_way_to_run_on_a_device_gives_the_same(form: str, tiny_model: Path) -> None:
    """The engine of a GPU, its kernels' twins in torch."""
    from support.device_reference import device_generate, twin_target  # loads triton

    target = twin_target(tiny_model, kv=FORMS[form])
    requests = some_requests(0.0, 12)[::2]
    requests = [replace(one, sampling=replace(one.sampling, logprobs=None)) for one in requests]
    alone = target(replace(WIDE, max_running=1, step_nodes=0, prefix_cache=False))
    assert alone.kv.keys.dtype.itemsize == 1
    expected = [device_generate(alone, one) for one in requests]
    with running_loop(target, WIDE, drafter("oracle", requests, expected)) as runner:
        assert_equal(runner.run(requests), expected)
        assert runner.loop.state().accepted_tokens > 10
