"""The loop's counters are those of the requests it has served."""

from __future__ import annotations

from dataclasses import replace

from support.verify_loop import OracleTrees, Target, running_loop
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import GenerationRequest, RequestKey, SamplingParams

CONFIG = EngineConfig(num_pages=128, prefill_chunk=24, adaptive=False)
PROMPT = tuple(range(40, 140))
SAMPLING = SamplingParams(temperature=0.0, max_tokens=12, seed=1, ignore_eos=True)


def test_prompts_and_steps_add_up_to_those_of_the_requests(target: Target) -> None:
    requests = [GenerationRequest(RequestKey(0, i), PROMPT, arrival=0.0, sampling=SAMPLING) for i in range(3)]
    trees = OracleTrees({requests[0].key: (*PROMPT, *range(12))}, 512, seed=1)
    with running_loop(target, CONFIG, trees) as runner:
        usages = [runner.run([replace(one)])[0].last.usage for one in requests]
        assert runner.loop.wait_idle(60.0)
        state = runner.loop.state()
    assert sum(usage.cached_tokens for usage in usages) == state.prefix_hit_tokens > 0
    assert state.prompt_tokens + state.prefix_hit_tokens == len(requests) * len(PROMPT)
    assert state.verify_steps == sum(usage.verify_steps for usage in usages)
    assert state.committed_tokens == sum(usage.completion_tokens for usage in usages) == 36
    assert state.step_rows is not None and state.step_seconds is not None
    assert sum(state.step_rows.counts) == sum(state.step_seconds.counts) == state.steps
    drafted = sum(usage.drafted_tokens for usage in usages)
    decoding = state.verify_steps - len(requests)  # each request's first token is decided by its prompt's last row
    assert state.step_rows.total == state.prompt_tokens + decoding + drafted
