"""Ranges of sampling parameters."""

from __future__ import annotations

import math

from slipstream.rpc.errors import InvalidArgumentError
from verify_service.core.request import SamplingParams

MAX_LOGIT_BIAS = 1024
MAX_STOP_TOKENS = 128
MAX_LOGPROBS = 20
MAX_BIAS = 100.0
LEAST_TEMPERATURE = 9.999999747378752e-06
"""1e-5 as float32, in which parameters arrive. Logits divided by less may overflow."""
LEAST_REPETITION_PENALTY = 0.009999999776482582
"""0.01 as float32."""


def check_range(field: str, value: float, low: float, high: float, *, above_low: bool = False) -> None:
    """Raise InvalidArgumentError unless low <= value <= high, or low < value <= high where `above_low` is set."""
    if math.isnan(value) or value < low or value > high or (above_low and value == low):
        lowest = f"{'above' if above_low else 'at least'} {f'{low:g}' if 0 < low < 1 else low}"
        raise InvalidArgumentError(f"{field} is {value}, must be {lowest} and at most {high}", field=field)


def check_tokens(field: str, tokens: tuple[int, ...], vocab_size: int) -> None:
    """Raise InvalidArgumentError unless all ids lie in the vocabulary."""
    if tokens and not (min(tokens) >= 0 and max(tokens) < vocab_size):
        index, token = next((i, t) for i, t in enumerate(tokens) if not 0 <= t < vocab_size)
        raise InvalidArgumentError(
            f"{field}[{index}] is {token}, the vocabulary has ids from 0 to {vocab_size - 1}", field=field
        )


def validate_sampling(params: SamplingParams, *, vocab_size: int) -> None:
    """Raise InvalidArgumentError, naming field and limit, for a value out of its range."""
    _validate_temperature(params.temperature)
    check_range("top_k", params.top_k, 0, 2**31 - 1)
    check_range("top_p", params.top_p, 0.0, 1.0, above_low=True)
    check_range("min_p", params.min_p, 0.0, 1.0)
    check_range("repetition_penalty", params.repetition_penalty, LEAST_REPETITION_PENALTY, 2.0)
    check_range("presence_penalty", params.presence_penalty, -2.0, 2.0)
    check_range("frequency_penalty", params.frequency_penalty, -2.0, 2.0)
    if params.seed is not None:
        check_range("seed", params.seed, 0, 2**64 - 1)
    for name in ("logprobs", "prompt_logprobs"):
        if (count := getattr(params, name)) is not None:
            check_range(name, count, 0, min(MAX_LOGPROBS, vocab_size))
    _validate_lengths(params)
    _validate_token_lists(params, vocab_size)
    if params.grammar is not None:
        check_tokens("grammar.starts_after", params.grammar.starts_after, vocab_size)
        if params.grammar.starts_after and params.ignore_eos:
            raise InvalidArgumentError(
                "ignore_eos cannot be set beside grammar.starts_after",
                field="ignore_eos",
            )


def _validate_temperature(temperature: float) -> None:
    if temperature != 0 and not LEAST_TEMPERATURE <= temperature <= 2:
        raise InvalidArgumentError(
            f"temperature is {temperature}, must be 0, or at least {LEAST_TEMPERATURE:g} and at most 2.0",
            field="temperature",
        )


def _validate_lengths(params: SamplingParams) -> None:
    if params.max_tokens is not None:
        check_range("max_tokens", params.max_tokens, 1 if params.prompt_logprobs is None else 0, 2**31 - 1)
    check_range("min_tokens", params.min_tokens, 0, 2**31 - 1)
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise InvalidArgumentError(
            f"min_tokens is {params.min_tokens}, must be at most max_tokens, which is {params.max_tokens}",
            field="min_tokens",
        )


def _validate_token_lists(params: SamplingParams, vocab_size: int) -> None:
    if len(params.stop_token_ids) > MAX_STOP_TOKENS:
        raise InvalidArgumentError(
            f"stop_token_ids has {len(params.stop_token_ids)} ids, the limit is {MAX_STOP_TOKENS}",
            field="stop_token_ids",
        )
    check_tokens("stop_token_ids", params.stop_token_ids, vocab_size)
    if len(params.logit_bias) > MAX_LOGIT_BIAS:
        raise InvalidArgumentError(
            f"logit_bias has {len(params.logit_bias)} entries, the limit is {MAX_LOGIT_BIAS}", field="logit_bias"
        )
    check_tokens("logit_bias", tuple(token for token, _ in params.logit_bias), vocab_size)
    for _, bias in params.logit_bias:
        check_range("logit_bias", bias, -MAX_BIAS, MAX_BIAS)
