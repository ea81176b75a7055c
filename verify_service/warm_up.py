"""One short generation before the first request, so that no client waits for a kernel to compile."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import numpy as np

from slipstream_kernels.models.causal_lm import CausalLM
from slipstream_kernels.token_tree import TokenTree
from verify_service.engine_config import EngineConfig
from verify_service.loop import VerifyLoop
from verify_service.request import FinishReason, GenerationRequest, RequestKey, SamplingParams, StepOutput
from verify_service.tree_source import Committed, Opening

_TOKENS = 4
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
)


class _FixedTree:
    """A TreeSource that always proposes the same tree of two depths, so that trees are verified."""

    def known(self, name: str) -> bool:
        return True

    def default(self) -> str | None:
        return "warm-up"

    def begin(self, opening: Opening) -> None:
        return None

    def commit(self, commits: Sequence[Committed]) -> None:
        return None

    def expects(self, keys: Sequence[RequestKey]) -> bool:
        return True

    def end(self, key: RequestKey, reason: FinishReason) -> None:
        return None

    def collect(self, wanted: Sequence[RequestKey]) -> list[TokenTree | None]:
        return [TokenTree((0, 1, 0), (-1, -1, 0))] * len(wanted)


def warm_up(model: CausalLM) -> None:
    """Run prefill, plain and tree steps, sampling with every option, and logprobs, on a loop of its own."""
    model.warm_up()
    cache = model.new_cache(num_pages=1, page_size=8, scratch_slots=1)
    cache.copy_slots(np.array([8], np.int32), np.array([0], np.int32))
    over = threading.Event()

    def sink(outputs: list[StepOutput]) -> None:
        if any(output.finish_reason is not None for output in outputs):
            over.set()

    loop = VerifyLoop(model, EngineConfig(num_pages=4, max_running=1, max_nodes=4), _FixedTree(), sink)
    loop.start()
    for number, sampling in enumerate((_PLAIN, _RICH)):
        over.clear()
        loop.submit(GenerationRequest(RequestKey(0, number), (0, 1), time.monotonic(), sampling=sampling))
        over.wait()
    loop.stop()
