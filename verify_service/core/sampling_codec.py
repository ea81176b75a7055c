"""Sampling parameters, which both of this service's codecs write."""

from __future__ import annotations

from typing import Any

from slipstream.grammar.codec import decode_grammar
from slipstream.v1 import sampling_pb2
from verify_service.core.request import SamplingParams


def decode_sampling(message: sampling_pb2.SamplingParams) -> SamplingParams:
    """Unset fields become the defaults that SamplingParams states."""
    default = SamplingParams()

    def given(name: str, otherwise: Any) -> Any:
        return getattr(message, name) if message.HasField(name) else otherwise

    return SamplingParams(
        temperature=given("temperature", default.temperature),
        top_k=given("top_k", default.top_k),
        top_p=given("top_p", default.top_p),
        min_p=given("min_p", default.min_p),
        seed=given("seed", default.seed),
        repetition_penalty=given("repetition_penalty", default.repetition_penalty),
        presence_penalty=given("presence_penalty", default.presence_penalty),
        frequency_penalty=given("frequency_penalty", default.frequency_penalty),
        logit_bias=tuple(sorted(message.logit_bias.items())),
        max_tokens=given("max_tokens", default.max_tokens),
        min_tokens=given("min_tokens", default.min_tokens),
        stop_token_ids=tuple(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        logprobs=given("logprobs", default.logprobs),
        prompt_logprobs=given("prompt_logprobs", default.prompt_logprobs),
        grammar=decode_grammar(message.grammar) if message.HasField("grammar") else None,
    )


def encode_sampling(params: SamplingParams) -> sampling_pb2.SamplingParams:
    """Every field that has a value is written out, so that a drafter needs no defaults of ours.

    But the grammar: drafters need not know it, as what it does not allow is cut from their trees.
    """
    return sampling_pb2.SamplingParams(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        seed=params.seed,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        logit_bias=dict(params.logit_bias),
        max_tokens=params.max_tokens,
        min_tokens=params.min_tokens,
        stop_token_ids=params.stop_token_ids,
        ignore_eos=params.ignore_eos,
        logprobs=params.logprobs,
        prompt_logprobs=params.prompt_logprobs,
    )
