"""Between protobuf messages and the gateway's own types, on both sides of it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from gateway.prompt_logprobs import PromptLogprobs
from gateway.request import (
    ChoiceRequest,
    Delta,
    FinishReason,
    PositionLogprobs,
    Proposer,
    ProposerRefusal,
    Sampling,
    SourceCount,
    Speculation,
    SpeculationStep,
    StepOutput,
    Timings,
    TokenLogprob,
    Usage,
    VerifyInfo,
)
from slipstream.rpc.errors import InvalidArgumentError, PayloadTooLargeError, error_of
from slipstream.v1 import gateway_pb2, sampling_pb2, verify_pb2

M = TypeVar("M", bound=Message)

_FINISH_REASONS: Final = {
    sampling_pb2.FINISH_REASON_STOP: FinishReason.STOP,
    sampling_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    sampling_pb2.FINISH_REASON_CANCELLED: FinishReason.CANCELLED,
    sampling_pb2.FINISH_REASON_ERROR: FinishReason.ERROR,
}
_FINISH_NUMBERS: Final = {reason: number for number, reason in _FINISH_REASONS.items()}
_OPTIONAL_SAMPLING: Final = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "max_tokens",
    "min_tokens",
    "logprobs",
    "prompt_logprobs",
)


def read_info(message: verify_pb2.GetInfoResponse) -> VerifyInfo:
    """Facts of a verify service."""
    return VerifyInfo(
        model_name=message.model_name,
        fingerprint=message.model_fingerprint,
        vocab_size=message.vocab_size,
        max_context=message.max_context,
        max_nodes=message.max_nodes,
        max_requests=message.max_running + message.max_queued,
        eos_token_ids=frozenset(message.eos_token_ids),
        proposers=tuple(Proposer(entry.name, entry.attached) for entry in message.proposers),
        default_proposer=message.default_proposer,
        build=(
            message.version,
            message.device.partition(":")[0],
            message.mode,
            message.attention,
            str(message.tensor_parallel_size),
        ),
        refusals=tuple(ProposerRefusal(entry.proposer, entry.reason) for entry in message.refusals),
    )


def write_submit(request_id: int, order: ChoiceRequest, output_token_ids: Sequence[int]) -> verify_pb2.SessionRequest:
    """A Submit; `output_token_ids` are those already received where a stream is resumed.

    The prompt's logprobs come before any of them, and are not asked for again.
    """
    sampling = replace(order.sampling, prompt_logprobs=None) if output_token_ids else order.sampling
    submit = verify_pb2.Submit(
        request_id=request_id,
        prompt_token_ids=() if order.prompt_wire else order.prompt_token_ids,
        output_token_ids=output_token_ids,
        sampling=_write_sampling(sampling),
        tenant=order.tenant,
        adapter_id=order.adapter_id,
        choice_index=order.choice_index,
    )
    if order.weight != 1.0:
        submit.weight = order.weight
    if order.speculation is not None:
        submit.speculation.CopyFrom(_write_speculation(order.speculation))
    message = verify_pb2.SessionRequest(submit=submit)
    if order.prompt_wire:
        # In place: to copy a long prompt costs more than to decode it.
        message.submit.MergeFromString(order.prompt_wire)
    return message


def write_prompt(token_ids: Sequence[int]) -> bytes:
    """A prompt as `ChoiceRequest.prompt_wire` has it."""
    return verify_pb2.Submit(prompt_token_ids=token_ids).SerializeToString()


def write_cancel(request_id: int) -> verify_pb2.SessionRequest:
    """A Cancel."""
    return verify_pb2.SessionRequest(cancel=verify_pb2.Cancel(request_id=request_id))


def _write_sampling(sampling: Sampling) -> sampling_pb2.SamplingParams:
    message = sampling_pb2.SamplingParams(
        logit_bias=sampling.logit_bias, stop_token_ids=sampling.stop_token_ids, ignore_eos=sampling.ignore_eos
    )
    for name in _OPTIONAL_SAMPLING:
        value = getattr(sampling, name)
        if value is not None:
            setattr(message, name, value)
    return message


def _write_speculation(speculation: Speculation) -> sampling_pb2.Speculation:
    return sampling_pb2.Speculation(
        enabled=speculation.enabled,
        proposer=speculation.proposer,
        max_nodes=speculation.max_nodes,
        max_depth=speculation.max_depth,
    )


def read_output(message: verify_pb2.RequestOutput) -> StepOutput:
    """What one step yielded for one request."""
    output = StepOutput(list(message.token_ids))
    if message.logprobs:
        output.logprobs = [_read_logprobs(entry) for entry in message.logprobs]
    if message.HasField("prompt_logprobs"):
        output.prompt_logprobs = _read_prompt_logprobs(message.prompt_logprobs)
    if message.HasField("step"):
        step = message.step
        sources = tuple(SourceCount(each.proposer, each.drafted, each.accepted) for each in step.sources)
        output.step = SpeculationStep(step.drafted, step.accepted, step.proposer, sources)
    if message.HasField("usage"):
        output.cached_tokens = message.usage.cached_tokens
    if message.finish_reason:
        output.finish_reason = _FINISH_REASONS.get(message.finish_reason, FinishReason.ERROR)  # of a later version
        if message.HasField("timings"):
            timings = message.timings
            output.timings = Timings(timings.queued, timings.first_token, timings.total)
        if message.HasField("error"):
            output.error = error_of(message.error.code, message.error.message, message.error.field)
            if message.error.HasField("retry_after"):
                output.error.retry_after = message.error.retry_after
    return output


def _read_prompt_logprobs(message: sampling_pb2.PromptLogprobs) -> PromptLogprobs:
    return PromptLogprobs(
        message.first_position,
        array("f", message.logprobs),
        array("I", message.ranks),
        message.top,
        array("I", message.top_ids),
        array("f", message.top_logprobs),
    )


def _read_logprobs(message: sampling_pb2.PositionLogprobs) -> PositionLogprobs:
    return PositionLogprobs(_read_logprob(message.chosen), [_read_logprob(entry) for entry in message.top])


def _read_logprob(message: sampling_pb2.TokenLogprob) -> TokenLogprob:
    return TokenLogprob(message.token_id, message.logprob, message.rank)


def check_size(data: bytes, most: int) -> None:
    """PayloadTooLargeError if a public request has more than `most` bytes."""
    if len(data) > most:
        raise PayloadTooLargeError(f"the request has {len(data)} bytes, the limit is {most} bytes")


def read_request(kind: type[M], data: bytes | bytearray) -> M:
    """A public request. InvalidArgumentError if `data` is no such message."""
    try:
        return kind.FromString(memoryview(data))  # type: ignore[arg-type]  # takes any buffer
    except DecodeError as error:
        raise InvalidArgumentError(f"the request is no valid {kind.DESCRIPTOR.name}: {error}") from error


def read_sampling(message: sampling_pb2.SamplingParams) -> Sampling:
    """Sampling parameters of a public request."""
    given = {name: getattr(message, name) for name in _OPTIONAL_SAMPLING if message.HasField(name)}
    return Sampling(
        **given,
        logit_bias=dict(message.logit_bias),
        stop_token_ids=tuple(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
    )


def read_speculation(message: sampling_pb2.Speculation) -> Speculation:
    """What a public request says about speculation."""
    return Speculation(
        enabled=message.enabled if message.HasField("enabled") else None,
        proposer=message.proposer,
        max_nodes=message.max_nodes if message.HasField("max_nodes") else None,
        max_depth=message.max_depth if message.HasField("max_depth") else None,
    )


def write_delta(delta: Delta, usage: Usage, seed: int | None) -> bytes:
    """A GenerateResponse with output. `seed` on the first one only; `usage` goes with the finish reason."""
    message = gateway_pb2.GenerateResponse(text=delta.text, token_ids=delta.token_ids)
    if seed is not None:
        message.seed = seed
    if delta.logprobs:
        message.logprobs.extend(map(_write_logprobs, delta.logprobs))
    if delta.step is not None:
        step = message.step
        step.drafted, step.accepted, step.proposer = delta.step.drafted, delta.step.accepted, delta.step.proposer
        for name, drafted, accepted in delta.step.sources:
            step.sources.add(proposer=name, drafted=drafted, accepted=accepted)
        step.SetInParent()
    if delta.finish_reason is not None:
        _write_end(message, delta, delta.finish_reason, usage)
    return message.SerializeToString()


def write_prompt_start(seed: int) -> bytes:
    """The first GenerateResponse where the prompt's logprobs are asked for: with the entry of its first token."""
    message = gateway_pb2.GenerateResponse(seed=seed)
    message.prompt_logprobs.add()
    return message.SerializeToString()


def write_prompt_logprobs(scores: PromptLogprobs, token_ids: Sequence[int]) -> bytes:
    """A GenerateResponse with logprobs of these tokens of a prompt."""
    message, top = gateway_pb2.GenerateResponse(), scores.top
    for index, (token, logprob, rank) in enumerate(zip(token_ids, scores.logprobs, scores.ranks, strict=True)):
        position = message.prompt_logprobs.add()
        position.chosen.token_id, position.chosen.logprob, position.chosen.rank = token, logprob, rank
        for place, at in enumerate(range(index * top, index * top + top), start=1):
            position.top.add(token_id=scores.top_ids[at], logprob=scores.top_logprobs[at], rank=place)
    return message.SerializeToString()


def _write_end(message: gateway_pb2.GenerateResponse, delta: Delta, finish_reason: FinishReason, usage: Usage) -> None:
    message.finish_reason = _FINISH_NUMBERS[finish_reason]
    message.usage.CopyFrom(
        sampling_pb2.Usage(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            verify_steps=usage.verify_steps,
            drafted_tokens=usage.drafted_tokens,
            accepted_tokens=usage.accepted_tokens,
        )
    )
    if delta.timings is not None:
        timings = delta.timings
        message.timings.CopyFrom(
            sampling_pb2.Timings(queued=timings.queued, first_token=timings.first_token, total=timings.total)
        )
    if delta.stop_string is not None:
        message.stop_string = delta.stop_string
    if delta.stop_token_id is not None:
        message.stop_token_id = delta.stop_token_id


def _write_logprobs(position: PositionLogprobs) -> sampling_pb2.PositionLogprobs:
    return sampling_pb2.PositionLogprobs(
        chosen=_write_logprob(position.chosen), top=[_write_logprob(entry) for entry in position.top]
    )


def _write_logprob(entry: TokenLogprob) -> sampling_pb2.TokenLogprob:
    return sampling_pb2.TokenLogprob(token_id=entry.token_id, logprob=entry.logprob, rank=entry.rank)


def write_token_ids(token_ids: Sequence[int]) -> bytes:
    """A TokenizeResponse."""
    return gateway_pb2.TokenizeResponse(token_ids=token_ids).SerializeToString()


def write_models(infos: Sequence[VerifyInfo]) -> bytes:
    """A ListModelsResponse: the models that can be asked for."""
    response = gateway_pb2.ListModelsResponse(
        models=[
            gateway_pb2.Model(
                name=info.model_name,
                max_context=info.max_context,
                vocab_size=info.vocab_size,
                proposers=[proposer.name for proposer in info.proposers],
                default_proposer=info.default_proposer,
            )
            for info in infos
        ]
    )
    return response.SerializeToString()
