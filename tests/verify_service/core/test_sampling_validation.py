"""Each sampling parameter has a range, and an error that names it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from slipstream.rpc.errors import InvalidArgumentError
from verify_service.core.request import SamplingParams
from verify_service.core.sampling_validation import validate_sampling

VOCAB = 512


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", [0.0, 1e-5, 2.0]),
        ("top_k", [0, 2**31 - 1]),
        ("top_p", [1e-6, 1.0]),
        ("min_p", [0.0, 1.0]),
        ("seed", [None, 0, 2**64 - 1]),
        ("repetition_penalty", [0.01, 2.0]),
        ("presence_penalty", [-2.0, 2.0]),
        ("frequency_penalty", [-2.0, 2.0]),
        ("max_tokens", [None, 1]),
        ("stop_token_ids", [(), (0, VOCAB - 1)]),
        ("logit_bias", [(), ((0, -100.0), (VOCAB - 1, 100.0))]),
        ("logprobs", [None, 0, 20]),
        ("prompt_logprobs", [None, 0, 20]),
    ],
)
def test_ends_of_ranges_are_inside(field: str, values: list[Any]) -> None:
    for value in values:
        validate_sampling(SamplingParams(**{field: value}), vocab_size=VOCAB)
        if isinstance(value, float):
            validate_sampling(SamplingParams(**{field: float(np.float32(value))}), vocab_size=VOCAB)


@pytest.mark.parametrize(
    ("field", "value", "limit"),
    [
        ("temperature", -0.1, "0, or at least 1e-05"),
        ("temperature", 1e-40, "at least 1e-05"),
        ("temperature", 9.9e-6, "at least 1e-05"),
        ("temperature", 2.1, "2.0"),
        ("temperature", math.nan, "2.0"),
        ("temperature", math.inf, "2.0"),
        ("top_k", -1, "0"),
        ("top_p", 0.0, "above 0.0"),
        ("top_p", 1.1, "1.0"),
        ("min_p", -0.1, "0.0"),
        ("min_p", 1.1, "1.0"),
        ("seed", -1, "0"),
        ("seed", 2**64, str(2**64 - 1)),
        ("repetition_penalty", 0.0, "at least 0.01"),
        ("repetition_penalty", 1e-40, "at least 0.01"),
        ("repetition_penalty", 0.0099, "at least 0.01"),
        ("repetition_penalty", 2.1, "2.0"),
        ("presence_penalty", -2.1, "-2.0"),
        ("frequency_penalty", 2.1, "2.0"),
        ("max_tokens", 0, "1"),
        ("min_tokens", -1, "0"),
        ("stop_token_ids", (VOCAB,), str(VOCAB - 1)),
        ("stop_token_ids", (-1,), str(VOCAB - 1)),
        ("stop_token_ids", (1,) * 129, "128"),
        ("logit_bias", ((VOCAB, 1.0),), str(VOCAB - 1)),
        ("logit_bias", ((1, 100.5),), "100.0"),
        ("logit_bias", tuple((i % VOCAB, 1.0) for i in range(1025)), "1024"),
        ("logprobs", 21, "20"),
        ("prompt_logprobs", 21, "20"),
    ],
)
def test_outside_is_refused_by_name_and_limit(field: str, value: Any, limit: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        validate_sampling(SamplingParams(**{field: value}), vocab_size=VOCAB)
    assert refused.value.field == field
    assert field in refused.value.message
    assert limit in refused.value.message


def test_no_tokens_may_be_wanted_where_the_prompt_is_scored() -> None:
    validate_sampling(SamplingParams(max_tokens=0, prompt_logprobs=0), vocab_size=VOCAB)
    with pytest.raises(InvalidArgumentError, match="max_tokens is -1, must be at least 0"):
        validate_sampling(SamplingParams(max_tokens=-1, prompt_logprobs=0), vocab_size=VOCAB)


def test_min_tokens_beyond_max_tokens() -> None:
    with pytest.raises(InvalidArgumentError, match="min_tokens is 5, must be at most max_tokens, which is 4"):
        validate_sampling(SamplingParams(min_tokens=5, max_tokens=4), vocab_size=VOCAB)
