"""Plain decoding on a device's model, one token a pass: what the engine over that model must reproduce."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.local_engine.measured_model import limits_of
from slipstream.generation_types import FinishReason
from slipstream_kernels.models.gpu.batch.pass_plan import PassPlan
from slipstream_kernels.models.gpu.forward.ops_namespace import Ops, twins
from slipstream_kernels.models.gpu.gpu_model import GpuModel
from slipstream_kernels.models.kv_form import FLOAT, KVForm
from slipstream_kernels.ops.gpu.sampling_table import pack_line
from support.request_mix import Expected
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import GenerationRequest
from verify_service.model_runner.logprobs import logprob_entries


class TwinModel(GpuModel):
    """A GpuModel on the CPU whose passes cost the same by decree: to measure them takes long."""

    def pass_costs(self) -> list[tuple[int, int, float]]:
        return [(1, 1, 1e-3), (1, 64, 1.2e-3)]


def twin_target(folder: Path, ops: Callable[[], Ops] = twins, kv: KVForm = FLOAT) -> Callable[[EngineConfig], GpuModel]:
    """What prepares a model of a folder for an engine; models of equal engines are the same."""

    @cache
    def prepare(config: EngineConfig) -> GpuModel:
        limits = replace(limits_of(config, 4), kv=kv)
        return TwinModel.load(folder, limits, device="cpu", ops=ops(), progress=False)

    return prepare


def device_generate(model: GpuModel, request: GenerationRequest) -> Expected:
    """Output tokens, their logprobs and why the output ended, on line 0 with its pages in order."""
    params, prompt = request.sampling, list(request.prompt_token_ids)
    ends = {*params.stop_token_ids, *model.config.eos_token_ids}
    penalised = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) != (1, 0, 0)
    line = pack_line(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        seed=params.seed or 0,
        choice=request.choice_index,
        repetition=params.repetition_penalty,
        presence=params.presence_penalty,
        frequency=params.frequency_penalty,
        has_bias=bool(params.logit_bias),
        min_position=len(prompt) + params.min_tokens if params.min_tokens else 0,
    )
    model.set_line(
        0,
        line,
        prompt_ids=prompt if penalised else None,
        output_ids=[] if penalised else None,
        bias=params.logit_bias or None,
        end_ids=sorted(ends) if params.min_tokens else None,
    )
    model.set_pages(0, 0, np.arange(model.limits.context_pages, dtype=np.int32))
    stops = set(params.stop_token_ids) | (set() if params.ignore_eos else set(model.config.eos_token_ids))
    tokens, entries = list(prompt), []
    for position in range(len(prompt) - 1 + (params.max_tokens or 1)):
        if position < len(prompt) - 1:
            _pass(model, tokens, position, decides=False)
            continue
        ticket = _pass(model, tokens, position, decides=True)
        chosen = ticket.results()[:, 66]
        tokens.append(int(chosen[0]))
        if params.logprobs is not None:
            found = model.logprobs(ticket, np.zeros(1, np.int32), chosen.copy(), params.logprobs)
            entries.extend(logprob_entries(chosen, *found))
        if tokens[-1] in stops:
            return tuple(tokens[len(prompt) :]), tuple(entries), FinishReason.STOP
    return tuple(tokens[len(prompt) :]), tuple(entries), FinishReason.LENGTH


def _pass(model: GpuModel, tokens: list[int], position: int, *, decides: bool):
    plan = PassPlan.chunk(
        np.array(tokens[position : position + 1], np.int32),
        line=0,
        start=position,
        slots=np.array([position], np.int32),
    )
    if not decides:
        plan = replace(plan, logit_rows=plan.logit_rows[:0], deciding=plan.deciding[:0])
    return model.launch(plan)
