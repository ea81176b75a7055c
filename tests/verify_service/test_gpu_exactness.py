"""The GPU's engine over torch twins of its kernels: one token a pass against every way to run.

The reference launches its passes itself: without the loop, the scheduler, the cache or the engine.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.request_mix import Expected, assert_equal, drafter, some_requests
from support.verify_loop import Target, running_loop
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import GenerationRequest

TOKENS = 20
WIDE = EngineConfig(num_pages=128, max_running=8, prefill_chunk=128, step_nodes=64, max_nodes=32, adaptive=False)
SETTINGS = {
    "plenty": replace(WIDE, prefix_cache=False),
    "chunks": replace(WIDE, page_size=1, num_pages=640, prefill_chunk=7),
    "short of pages": replace(WIDE, num_pages=11),
    "large pages": replace(WIDE, page_size=64, num_pages=4, max_running=3),
}


@pytest.fixture(scope="module", params=[0.0, 0.8], ids=["greedy", "seeded"])
def reference(request: pytest.FixtureRequest, twins: Target) -> tuple[list[GenerationRequest], list[Expected]]:
    from support.device_reference import device_generate  # as late as `twins`

    requests = some_requests(request.param, TOKENS)
    requests[4] = replace(requests[4], sampling=replace(requests[4].sampling, logprobs=None))
    model = twins(replace(WIDE, max_running=1, step_nodes=0, prefix_cache=False))
    return requests, [device_generate(model, one) for one in requests]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("proposer", ["none", "random", "oracle"])
def test_every_way_to_run_gives_the_same(
    twins: Target, reference: tuple[list[GenerationRequest], list[Expected]], proposer: str, settings: str
) -> None:
    requests, expected = reference
    trees = drafter(proposer, requests, expected)
    with running_loop(twins, SETTINGS[settings], trees) as runner:
        answers = runner.run(requests)
        assert_equal(answers, expected)
        state = runner.loop.state()
    assert (state.drafted_tokens > 0) == (proposer != "none")
    assert (state.accepted_tokens > 0) >= (proposer == "oracle")
    if proposer == "none":
        usages = [answer.last.usage for answer in answers]
        assert [usage.verify_steps for usage in usages if usage] == [len(tokens) for tokens, _, _ in expected]
    if settings == "short of pages" and proposer == "none":
        assert state.preemptions > 0


def test_a_prefix_from_the_cache_and_a_resumed_stream(
    twins: Target, reference: tuple[list[GenerationRequest], list[Expected]]
) -> None:
    requests, expected = reference
    cut = 3
    later = [
        replace(one, key=one.key._replace(session_id=1), output_token_ids=tokens[:cut])
        for one, (tokens, _, _) in zip(requests, expected, strict=True)
    ]
    with running_loop(twins, WIDE) as runner:
        assert_equal(runner.run(requests, 1), expected)
        answers = runner.run(later)
        assert runner.loop.state().prefix_hit_tokens > 200
    for answer, (tokens, entries, reason) in zip(answers, expected, strict=True):
        assert answer.token_ids == tokens[cut:]
        assert answer.logprobs == entries[cut:]
        assert answer.finish_reason is reason
