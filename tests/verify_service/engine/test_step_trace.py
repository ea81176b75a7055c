"""The trace of a verify step."""

from __future__ import annotations

import pytest

from slipstream.generation_types import SpeculationOptions, SpeculationStep, StepTrace
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.token_tree import TokenTree
from support.verify_loop import admitted, running_loop
from verify_service.core.acceptance import AcceptedPath
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import GenerationRequest, RequestKey, SamplingParams
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.core.step_result import VerifyResult
from verify_service.engine.step_trace import traced

CONFIG = EngineConfig(num_pages=8)
TREE = TokenTree((8, 4, 9), (-1, 0, -1), (-0.5, -1.5, -2.0), ("a", "b", "a"))


def decision(tree: TokenTree | None) -> VerifyResult:
    state = admitted(CONFIG, (1, 2, 3))
    state.kv.num_computed_tokens = 2
    nodes = () if tree is None else (0, 1)
    return VerifyResult(ScheduledRequest(state, 1, tree), AcceptedPath(nodes, (8, 4, 6)[: 1 + len(nodes)]), 0)


def test_it_has_the_tree_and_the_path_as_far_as_it_became_output() -> None:
    step = SpeculationStep(3, 2, "hybrid")
    whole = traced(step, decision(TREE), 3, pass_rows=9, pass_seconds=0.25).trace
    assert whole == StepTrace(0, (8, 4, 9), (-1, 0, -1), (-0.5, -1.5, -2.0), ("a", "b", "a"), (0, 1), 9, 0.25)
    cut = traced(step, decision(TREE), 1, pass_rows=9, pass_seconds=0.25).trace
    assert cut is not None and cut.accepted == (0,)


def test_a_plain_step_has_no_nodes() -> None:
    trace = traced(SpeculationStep(0, 0, ""), decision(None), 1, pass_rows=2, pass_seconds=0.5).trace
    assert trace == StepTrace(0, pass_rows=2, pass_seconds=0.5)


@pytest.mark.parametrize("before", [(), (7, 9, 11)])
def test_positions_go_on_where_a_stream_is_resumed(model: CausalLM, before: tuple[int, ...]) -> None:
    request = GenerationRequest(
        RequestKey(1, 1),
        (5, 6, 7),
        0.0,
        output_token_ids=before,
        sampling=SamplingParams(seed=1, max_tokens=8, ignore_eos=True),
        speculation=SpeculationOptions(trace=True),
    )
    with running_loop(model, EngineConfig(num_pages=64)) as runner:
        (answer,) = runner.run([request])
    traces = [output.step.trace for output in answer.outputs if output.step is not None]
    assert [trace.position for trace in traces if trace is not None] == list(range(len(before), 8))
