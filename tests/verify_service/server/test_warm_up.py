"""A first generation shows that steps of every kind work, on whatever device."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

import pytest

from slipstream.rpc.errors import FailedPreconditionError
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.models.gpu.batch.pass_plan import PassPlan
from support.host_model import HostModel, HostTicket
from support.verify_loop import Target, running_loop
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import GenerationRequest, RequestKey, SamplingParams
from verify_service.server.warm_up import warm_up

CONFIG = EngineConfig(num_pages=64, page_size=4, max_running=2, step_nodes=8, prefill_chunk=16)
LEAST = EngineConfig(num_pages=1, page_size=1, max_running=1, max_nodes=1, step_nodes=0, prefill_chunk=1)


class Kinds(HostModel):
    """Notes the kinds of passes."""

    def launch(self, plan: PassPlan, *, again: bool = False) -> HostTicket:
        kinds = (plan.has_trees, len(plan.prefills) > 0, plan.keep_logits)
        self.journal.append(str(kinds))
        return super().launch(plan, again=again)


def test_prompts_trees_and_logprobs_are_run(model: CausalLM) -> None:
    kinds = Kinds(model, CONFIG)
    warm_up(kinds, CONFIG)  # type: ignore[arg-type]  # stand-in
    assert {str((False, True, False)), str((True, False, False)), str((True, False, True))} <= set(kinds.journal)


@pytest.mark.parametrize("config", [CONFIG, LEAST], ids=["some", "least"])
def test_every_size_can_be_warmed_up_and_then_serves(model: CausalLM, twins: Target, config: EngineConfig) -> None:
    params = SamplingParams(temperature=0.0, seed=1, max_tokens=5, ignore_eos=True)
    answers = []
    for target in (twins, partial(HostModel, model)):
        for warm in (False, True):
            prepared = target(replace(config, num_pages=config.num_pages + 8))
            if warm:
                warm_up(prepared, config)
            with running_loop(lambda _, prepared=prepared: prepared, replace(config, num_pages=8)) as runner:
                (answer,) = runner.run([GenerationRequest(RequestKey(0, 0), (7, 8), arrival=0.0, sampling=params)])
            answers.append(answer.token_ids)
    assert answers[0] == answers[1]
    assert answers[2] == answers[3]
    assert [len(tokens) for tokens in answers] == [5] * 4


class Broken(HostModel):
    """Fails in every pass."""

    def _run(self, plan: PassPlan, ticket: HostTicket) -> None:
        raise RuntimeError("no pass works")


def test_a_model_that_fails_is_not_served(model: CausalLM, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL), pytest.raises(FailedPreconditionError, match="first steps failed"):
        warm_up(Broken(model, CONFIG), CONFIG)  # type: ignore[arg-type]  # stand-in
