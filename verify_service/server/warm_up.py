"""One short generation before the first request, so that no client waits for a kernel to compile."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from slipstream.rpc.errors import FailedPreconditionError, InternalError
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.token_tree import TokenTree
from verify_service.core.draft_source import NoDrafts, RequestOpening
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import GenerationRequest, RequestKey, SamplingParams, StepOutput
from verify_service.engine.sink import Sink
from verify_service.engine.verify_loop import VerifyLoop
from verify_service.model_runner.factory import TargetModel

_TOKENS = 4
_LONGEST = 16
"""Tokens of the longest request, its trees included."""
_PLAIN = SamplingParams(temperature=0.0, max_tokens=_TOKENS, ignore_eos=True)
_RICH = SamplingParams(
    temperature=0.8,
    top_k=8,
    top_p=0.9,
    min_p=0.01,
    seed=1,
    repetition_penalty=1.1,
    presence_penalty=0.1,
    frequency_penalty=0.1,
    logit_bias=((0, 1.0),),
    max_tokens=_TOKENS,
    min_tokens=2,
    logprobs=2,
    prompt_logprobs=2,
)


class _FixedTree(NoDrafts):
    """Always proposes the same tree of two depths, so that trees are verified."""

    def known(self, name: str) -> bool:
        return True

    def default(self) -> str | None:
        return "warm-up"

    def begin(self, opening: RequestOpening) -> bool:
        return True

    def expects(self, keys: Sequence[RequestKey]) -> bool:
        return True

    def collect(self, wanted: Sequence[RequestKey]) -> list[TokenTree | None]:
        return [TokenTree((0, 1, 0), (-1, -1, 0))] * len(wanted)


def warm_up(model: TargetModel, config: EngineConfig) -> None:
    """Run prefill, plain and tree steps, sampling with every option, and logprobs, on a small loop of its own.

    `config` is that of the engine to come, whose pages and tables are as good as empty afterwards. Raises
    FailedPreconditionError where a step fails.
    """
    if isinstance(model, CausalLM):
        model.warm_up()
    over = threading.Event()
    failures: list[str] = []

    def sink(outputs: list[StepOutput]) -> None:
        failures.extend(output.error.message for output in outputs if isinstance(output.error, InternalError))
        if any(output.finish_reason is not None for output in outputs):
            over.set()

    pages = min(config.num_pages, ceil(_LONGEST / config.page_size))
    small = replace(config, num_pages=pages, max_running=1, max_nodes=min(4, config.max_nodes))
    loop = VerifyLoop(model, small, _FixedTree(), Sink(sink))
    loop.start()
    for number, sampling in enumerate((_PLAIN, _RICH)):
        over.clear()
        loop.submit(GenerationRequest(RequestKey(0, number), (0, 1), time.monotonic(), sampling=sampling))
        over.wait()
    loop.stop()
    if failures:
        raise FailedPreconditionError(f"the model's first steps failed, the log says why: {failures[0]}")
