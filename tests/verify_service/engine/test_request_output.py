"""Outputs are cut at the deciding token."""

from __future__ import annotations

import pytest

from slipstream.generation_types import FinishReason
from support.verify_loop import admitted
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import SamplingParams
from verify_service.core.request_state import RequestState
from verify_service.engine.request_output import PLAIN_STEP, cut_output, end_output, step_output

EOS = 2


def state(max_tokens: int, output: tuple[int, ...] = ()) -> RequestState:
    params = SamplingParams(seed=3, max_tokens=max_tokens, stop_token_ids=(9,))
    return admitted(EngineConfig(num_pages=64), (1, 5), output=output, sampling=params)


@pytest.mark.parametrize(
    ("max_tokens", "tokens", "count", "reason"),
    [
        (10, (7, 8), 2, None),
        (2, (7, 8), 2, FinishReason.LENGTH),
        (2, (7, 8, 6), 2, FinishReason.LENGTH),
        (10, (7, EOS, 8), 2, FinishReason.STOP),
        (10, (9,), 1, FinishReason.STOP),
        (2, (7, 9, 8), 2, FinishReason.STOP),
        (1, (7, 9), 1, FinishReason.LENGTH),
    ],
)
def test_cut(max_tokens: int, tokens: tuple[int, ...], count: int, reason: FinishReason | None) -> None:
    assert cut_output(state(max_tokens), tokens) == (count, reason)


def test_prior_output_counts() -> None:
    assert cut_output(state(3, output=(6, 7)), (8, 8)) == (1, FinishReason.LENGTH)


def test_seed_first_usage_first_and_last() -> None:
    one = state(10, output=(6,))
    first = step_output(one, (7,), (), PLAIN_STEP, None, now=1.0)
    assert (first.seed, first.timings) == (3, None)
    assert first.usage is not None
    assert first.usage.prompt_tokens == 2
    second = step_output(one, (7,), (), PLAIN_STEP, None, now=1.5)
    assert (second.seed, second.usage, second.timings) == (None, None, None)
    one.tokens.append(7)
    last = end_output(one, FinishReason.CANCELLED, now=2.0)
    assert last.seed is None
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (2, 2)
    assert last.timings is not None
    assert last.timings.total == 2.0
