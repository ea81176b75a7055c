"""Steps that begin before it is known how far the one before them comes, which has trees.

Over torch twins of the GPU's kernels, and over a model that runs as late as a device could. Whoever has a tree, or is
expected to get one, the tokens are those of plain decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.ops.logprobs import logprobs
from slipstream_kernels.token_tree import TokenTree
from support.host_model import HostModel
from support.models import make_tiny_model
from support.plain_reference import plain_generate
from support.request_mix import Expected, assert_equal, some_requests
from support.verify_loop import OracleTrees, Target, running_loop
from verify_service.core.acceptance import AcceptedPath
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import GenerationRequest, RequestKey
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.model_runner.logprobs import logprob_entries

TOKENS = 20
WIDE = EngineConfig(num_pages=128, max_running=8, prefill_chunk=128, step_nodes=64, max_nodes=32, adaptive=False)
SETTINGS = {
    "plenty": replace(WIDE, prefix_cache=False),
    "chunks": replace(WIDE, page_size=1, num_pages=640, prefill_chunk=7),
    "short of pages": replace(WIDE, num_pages=11),
    "few nodes, one after the other": replace(WIDE, step_nodes=9, max_running=2, adaptive=True),
}
Reference = tuple[list[GenerationRequest], list[Expected]]


@pytest.fixture(scope="module", params=[0.0, 0.8], ids=["greedy", "seeded"])
def on_host(request: pytest.FixtureRequest, model: CausalLM) -> Reference:
    requests = some_requests(request.param, 2 * TOKENS)
    return requests, [expected_of(model, one) for one in requests]


def expected_of(model: CausalLM, request: GenerationRequest) -> Expected:
    prompt, choice = list(request.prompt_token_ids), request.choice_index
    tokens, rows, reason = plain_generate(model, prompt, request.sampling, choice=choice)
    chosen = np.array(tokens, dtype=np.int32)
    entries = logprob_entries(chosen, *logprobs(np.stack(rows), chosen, request.sampling.logprobs or 0))
    return tuple(tokens), entries, reason


@pytest.fixture(scope="module", params=[0.0, 0.8], ids=["greedy", "seeded"])
def on_device(request: pytest.FixtureRequest, twins: Target) -> Reference:
    from support.device_reference import device_generate  # as late as `twins`

    requests = some_requests(request.param, TOKENS)
    requests[4] = replace(requests[4], sampling=replace(requests[4].sampling, logprobs=None))
    model = twins(replace(WIDE, max_running=1, step_nodes=0, prefix_cache=False))
    return requests, [device_generate(model, one) for one in requests]


class UnexpectedTrees(OracleTrees):
    """Of which a part is expected to come."""

    def expects(self, keys: Sequence[RequestKey]) -> bool:
        return super().expects(keys) and self.random.random() < 0.3

    def propose(self, key: RequestKey, nodes: int, depth: int) -> TokenTree | None:
        return super().propose(key, min(nodes, 6), min(depth, 2))


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Accepted nodes of steps that were found out behind the launch of the next one."""
    found: list[int] = []
    resolve = ScheduledRequest.resolve

    def noted(item: ScheduledRequest, before: AcceptedPath) -> None:
        found.append(len(before.nodes))
        resolve(item, before)

    monkeypatch.setattr(ScheduledRequest, "resolve", noted)
    return found


def check(target: Target, reference: Reference, settings: EngineConfig, ends: list[int]) -> None:
    requests, expected = reference
    texts = {one.key: one.prompt_token_ids + tokens for one, (tokens, _, _) in zip(requests, expected, strict=True)}
    with running_loop(target, settings, UnexpectedTrees(texts, 512, 3)) as runner:
        assert_equal(runner.run(requests), expected)
        state = runner.loop.state()
    assert max(ends) > 0
    assert state.accepted_tokens > 0


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_late_device_gives_the_tokens_of_plain_decoding(
    model: CausalLM, on_host: Reference, settings: str, ends: list[int]
) -> None:
    check(partial(HostModel, model), on_host, SETTINGS[settings], ends)


def test_a_prompt_of_which_one_token_is_left_has_the_length_that_is_known(model: CausalLM, ends: list[int]) -> None:
    """The step before has rows of it, beside trees of others, and decides nothing for it."""
    settings = replace(SETTINGS["chunks"], prefix_cache=False)
    some = some_requests(0.8, TOKENS)
    short = [replace(one, prompt_token_ids=one.prompt_token_ids[-settings.prefill_chunk - 1 :]) for one in some]
    requests = [replace(one, key=RequestKey(turn, one.key.request_id)) for turn in range(3) for one in short]
    check(partial(HostModel, model), (requests, [expected_of(model, one) for one in requests]), settings, ends)


def test_the_kernels_twins_give_the_tokens_of_plain_decoding(
    twins: Target, on_device: Reference, ends: list[int]
) -> None:
    check(twins, on_device, SETTINGS["short of pages"], ends)


@pytest.mark.slow
def test_ranks_find_the_same(tmp_path: Path, ends: list[int]) -> None:
    """Two ranks of one model, each of which finds for itself where requests stand."""
    from benchmarks.local_engine.measured_model import limits_of  # as late as `twins`
    from slipstream_kernels.models.gpu.parallel.tp_worker_process import load_shared

    settings = replace(WIDE, step_nodes=16, max_nodes=8, prefix_cache=False)
    folder = make_tiny_model(tmp_path / "model", heads=4, kv_heads=2)
    lost: list[str] = []
    model, followers = load_shared(
        folder, limits_of(settings), device="cpu", mode="exact", size=2, progress=False, on_loss=lost.append
    )
    try:
        some = some_requests(0.8, TOKENS)[:3]
        requests = [replace(one, sampling=replace(one.sampling, logprobs=None)) for one in some]
        with running_loop(lambda _: model, settings) as runner:
            plain = runner.run(requests, 1)
        expected: list[Expected] = [(tuple(each.token_ids), (), each.finish_reason) for each in plain]
        check(lambda _: model, (requests, expected), settings, ends)
        model.stop_followers()
        followers.stop()
    finally:
        followers.kill()
        model.leave()
    assert not lost
