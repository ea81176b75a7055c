"""Between protobuf messages and the gateway's own types, on both sides of it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from gateway.core.prompt_logprobs import PromptLogprobs
from gateway.core.request import (
    ChoiceRequest,
    Delta,
    Drafter,
    ProposerRefusal,
    ReportedProposer,
    Sampling,
    ServedAdapter,
    ServiceState,
    StepOutput,
    VerifyInfo,
)
from gateway.tokens.stream import ChoiceStream
from slipstream.generation_codec import (
    FINISH_NUMBERS,
    read_position,
    read_step,
    read_timings,
    write_position,
    write_speculation,
    write_step,
    write_timings,
    write_usage,
)
from slipstream.generation_types import FinishReason, SpeculationStep, Usage
from slipstream.grammar.codec import decode_grammar, encode_grammar
from slipstream.grammar.grammar import Grammar
from slipstream.request_context import NO_CONTEXT, RequestContext
from slipstream.rpc.errors import InvalidArgumentError, PayloadTooLargeError, error_of
from slipstream.v1 import gateway_pb2, sampling_pb2, verify_pb2

M = TypeVar("M", bound=Message)

_FINISH_REASONS: Final = {number: reason for reason, number in FINISH_NUMBERS.items()}
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
        proposers=tuple(ReportedProposer(entry.name, entry.attached, entry.preparing) for entry in message.proposers),
        default_proposer=message.default_proposer,
        build=(
            message.version,
            message.device.partition(":")[0],
            message.mode,
            message.attention,
            str(message.tensor_parallel_size),
            message.kv_cache_dtype,
        ),
        refusals=tuple(ProposerRefusal(entry.proposer, entry.reason) for entry in message.refusals),
        max_running=message.max_running,
        page_size=message.page_size if message.cache_events else 0,
        serving_seconds=message.serving_seconds,
        adapters=tuple(map(read_adapter, message.adapters.adapters)),
        adapters_version=message.adapters.version,
    )


def read_adapter(message: verify_pb2.Adapter) -> ServedAdapter:
    """A LoRA adapter that a verify service has loaded."""
    return ServedAdapter(message.name, message.id, message.rank)


def with_adapters(info: VerifyInfo, loaded: verify_pb2.AdapterList) -> VerifyInfo:
    """The facts with what a service has loaded by now; as they were where they are later than that."""
    if loaded.version <= info.adapters_version:
        return info
    adapters = tuple(map(read_adapter, loaded.adapters))
    return replace(info, adapters=adapters, adapters_version=loaded.version)


def read_state(message: verify_pb2.GetStateResponse) -> ServiceState:
    """What a verify service does at the moment."""
    drafters = tuple(
        Drafter(
            each.name,
            each.proposer,
            each.epoch,
            each.address,
            each.transport,
            each.requests,
            each.share,
            each.drafted_tokens,
            each.accepted_tokens,
        )
        for each in message.drafters
    )
    return ServiceState(message.running, message.queued, drafters)


def write_submit(request_id: int, order: ChoiceRequest, *, resumed: bool) -> bytes:
    """A SessionRequest with a Submit less its token ids and its grammar, which `complete_submit` adds.

    Where a stream is resumed, it is past the prompt's logprobs, and they are not asked for again.
    """
    sampling = replace(order.sampling, prompt_logprobs=None) if resumed else order.sampling
    submit = verify_pb2.Submit(
        request_id=request_id,
        sampling=_write_sampling(sampling),
        tenant=order.tenant,
        adapter_id=order.adapter_id,
        choice_index=order.choice_index,
    )
    if order.weight != 1.0:
        submit.weight = order.weight
    if order.context != NO_CONTEXT:
        _write_context(order.context, submit.context)
    if order.speculation is not None:
        submit.speculation.CopyFrom(write_speculation(order.speculation))
    return _wrapped(submit)


def complete_submit(submit: bytes, order: ChoiceRequest, output_token_ids: Sequence[int]) -> bytes:
    """A SessionRequest whole: what `write_submit` wrote, with the grammar, the prompt and the tokens already received.

    Protobuf reads encoded messages in a row as one, merged. So choices share the bytes of their grammar and prompt.
    """
    received = _wrapped(verify_pb2.Submit(output_token_ids=output_token_ids)) if output_token_ids else b""
    grammar = order.grammar_wire or write_grammar(order.sampling.grammar)
    return b"".join((submit, grammar, order.prompt_wire or write_prompt(order.prompt_token_ids), received))


def _wrapped(submit: verify_pb2.Submit) -> bytes:
    return verify_pb2.SessionRequest(submit=submit).SerializeToString()


def _write_context(context: RequestContext, message: verify_pb2.RequestContext) -> None:
    message.request_id = context.request_id
    message.traceparent, message.tracestate = context.traceparent, context.tracestate


def write_prompt(token_ids: Sequence[int]) -> bytes:
    """A prompt as `ChoiceRequest.prompt_wire` has it."""
    return _wrapped(verify_pb2.Submit(prompt_token_ids=token_ids))


def write_grammar(grammar: Grammar | None) -> bytes:
    """A grammar as `ChoiceRequest.grammar_wire` has it; empty where there is none."""
    if grammar is None:
        return b""
    return _wrapped(verify_pb2.Submit(sampling=sampling_pb2.SamplingParams(grammar=encode_grammar(grammar))))


def write_watch_cache() -> bytes:
    """A SessionRequest that asks for a snapshot of the prefix cache and for changes from then on."""
    return verify_pb2.SessionRequest(watch_cache=verify_pb2.WatchCache()).SerializeToString()


def write_cancel(request_id: int) -> bytes:
    """A SessionRequest with a Cancel."""
    return verify_pb2.SessionRequest(cancel=verify_pb2.Cancel(request_id=request_id)).SerializeToString()


def _write_sampling(sampling: Sampling) -> sampling_pb2.SamplingParams:
    """All but the grammar, which choices share."""
    message = sampling_pb2.SamplingParams(
        logit_bias=sampling.logit_bias, stop_token_ids=sampling.stop_token_ids, ignore_eos=sampling.ignore_eos
    )
    for name in _OPTIONAL_SAMPLING:
        value = getattr(sampling, name)
        if value is not None:
            setattr(message, name, value)
    return message


def read_output(message: verify_pb2.RequestOutput) -> StepOutput:
    """What one step yielded for one request."""
    output = StepOutput(list(message.token_ids))
    if message.logprobs:
        output.logprobs = [read_position(entry) for entry in message.logprobs]
    if message.HasField("prompt_logprobs"):
        output.prompt_logprobs = _read_prompt_logprobs(message.prompt_logprobs)
    if message.HasField("step"):
        output.step = read_step(message.step)
    if message.HasField("usage"):
        output.cached_tokens = message.usage.cached_tokens
    if message.finish_reason:
        output.finish_reason = _FINISH_REASONS.get(message.finish_reason, FinishReason.ERROR)  # of a later version
        if message.HasField("timings"):
            output.timings = read_timings(message.timings)
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
        grammar=decode_grammar(message.grammar) if message.HasField("grammar") else None,
    )


class DeltaWriter:
    """Writes the output of one choice, a GenerateResponse a delta."""

    __slots__ = ("_choice", "_step", "_step_wire")

    def __init__(self, choice: ChoiceStream) -> None:
        self._choice = choice
        self._step: SpeculationStep | None = None
        self._step_wire = b""  # that step's part of a message

    def write(self, delta: Delta, seed: int | None) -> bytes:
        """A message with output. `seed` on the first one only; the choice's usage goes with the finish reason."""
        message = gateway_pb2.GenerateResponse(text=delta.text, token_ids=delta.token_ids)
        if seed is not None:
            message.seed = seed
        if delta.logprobs:
            message.logprobs.extend(map(write_position, delta.logprobs))
        if delta.finish_reason is not None:
            _write_end(message, delta, delta.finish_reason, self._choice.usage)
        step = delta.step
        if step is None:
            return message.SerializeToString()
        if step is not self._step:  # equal steps are mostly one object
            self._step, self._step_wire = step, _step_wire(step)
        return message.SerializeToString() + self._step_wire  # messages in a row are read as one, merged


def _step_wire(step: SpeculationStep) -> bytes:
    """A GenerateResponse with the step alone."""
    message = gateway_pb2.GenerateResponse()
    write_step(step, message.step)
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
    message.finish_reason = FINISH_NUMBERS[finish_reason]
    message.usage.CopyFrom(write_usage(usage))
    if delta.timings is not None:
        message.timings.CopyFrom(write_timings(delta.timings))
    if delta.stop_string is not None:
        message.stop_string = delta.stop_string
    if delta.stop_token_id is not None:
        message.stop_token_id = delta.stop_token_id


def write_token_ids(token_ids: Sequence[int]) -> bytes:
    """A TokenizeResponse."""
    return gateway_pb2.TokenizeResponse(token_ids=token_ids).SerializeToString()


def write_models(info: VerifyInfo) -> bytes:
    """A ListModelsResponse: the model, and its adapters."""
    models = [_model(info), *(_model(info, adapter) for adapter in info.adapters)]
    return gateway_pb2.ListModelsResponse(models=models).SerializeToString()


def write_loaded(info: VerifyInfo, adapter: ServedAdapter) -> bytes:
    """A LoadLoraAdapterResponse."""
    return gateway_pb2.LoadLoraAdapterResponse(model=_model(info, adapter)).SerializeToString()


def _model(info: VerifyInfo, adapter: ServedAdapter | None = None) -> gateway_pb2.Model:
    return gateway_pb2.Model(
        name=info.model_name if adapter is None else adapter.name,
        max_context=info.max_context,
        vocab_size=info.vocab_size,
        proposers=[proposer.name for proposer in info.proposers],
        default_proposer=info.default_proposer,
        parent="" if adapter is None else info.model_name,
    )
