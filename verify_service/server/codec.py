"""Protobuf messages of VerifyService to and from this service's own types. No message object leaves this module."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Final

from google.protobuf.message import DecodeError

from slipstream.generation_codec import (
    FINISH_NUMBERS,
    read_speculation,
    write_position,
    write_source,
    write_step,
    write_timings,
    write_usage,
)
from slipstream.generation_types import SpeculationStep
from slipstream.request_context import checked
from slipstream.rpc.errors import InvalidArgumentError, SlipstreamError, codes_of
from slipstream.v1 import sampling_pb2, verify_pb2
from verify_service.core.adapters import Adapter, AdapterList, AdapterState
from verify_service.core.prompt_scores import PromptScores
from verify_service.core.request import GenerationRequest, RequestKey, StepOutput
from verify_service.core.sampling_codec import decode_sampling
from verify_service.draft_link.link_state import DrafterState, LinkState, ProposerStatus
from verify_service.draft_link.refusals import Refusal
from verify_service.engine.command_queue import CancelRequest
from verify_service.engine.loop_stats import LoopState
from verify_service.server.cache_watch import CacheReport, WatchCache
from verify_service.server.server_info import ServerInfo

_MOST_KNOWN_STEPS: Final = 1024


def decode_session_request(
    data: bytes, session_id: int, arrival: float
) -> GenerationRequest | CancelRequest | WatchCache:
    """What a client sent on its session; ranges are checked at admission.

    InvalidArgumentError, which is the end of the session, if the bytes are no SessionRequest.
    """
    try:
        message = verify_pb2.SessionRequest.FromString(data)
    except DecodeError as error:
        raise InvalidArgumentError(f"not a SessionRequest: {error}") from error
    match message.WhichOneof("kind"):
        case "submit":
            return _generation_request(message.submit, session_id, arrival)
        case "cancel":
            return CancelRequest(RequestKey(session_id, message.cancel.request_id))
        case "watch_cache":
            return WatchCache()
        case _:
            raise InvalidArgumentError("a SessionRequest must hold submit, cancel or watch_cache", field="kind")


def _generation_request(submit: verify_pb2.Submit, session_id: int, arrival: float) -> GenerationRequest:
    return GenerationRequest(
        key=RequestKey(session_id, submit.request_id),
        prompt_token_ids=tuple(submit.prompt_token_ids),
        output_token_ids=tuple(submit.output_token_ids),
        sampling=decode_sampling(submit.sampling),
        speculation=read_speculation(submit.speculation),
        tenant=submit.tenant,
        adapter_id=submit.adapter_id,
        choice_index=submit.choice_index,
        weight=submit.weight if submit.HasField("weight") else 1.0,
        arrival=arrival,
        context=checked(submit.context.request_id, submit.context.traceparent, submit.context.tracestate),
    )


def encode_outputs(
    outputs: Sequence[StepOutput],
    started: Sequence[int] = (),
    cache: CacheReport | None = None,
    adapters: AdapterList | None = None,
) -> bytes:
    """A SessionResponse; `started` are ids of requests, `adapters` all that are loaded."""
    message = verify_pb2.SessionResponse(started=started)
    for output in outputs:
        message.outputs.append(_output(output))
    if cache is not None:
        message.cache.CopyFrom(verify_pb2.CacheEvents(**cache._asdict()))
    if adapters is not None:
        message.adapters.CopyFrom(_adapters(adapters))
    return message.SerializeToString()


def _output(output: StepOutput) -> verify_pb2.RequestOutput:
    """Holds until the next call."""
    step = output.step
    if output.is_tokens_alone and (step is None or step.trace is None):
        message = _of_tokens(step)
        message.request_id = output.key.request_id
        message.token_ids[:] = output.token_ids
        return message
    message = verify_pb2.RequestOutput(request_id=output.key.request_id, token_ids=output.token_ids, seed=output.seed)
    if output.logprobs:
        message.logprobs.extend(map(write_position, output.logprobs))
    if output.prompt_scores is not None:
        message.prompt_logprobs.CopyFrom(_prompt_logprobs(output.prompt_scores))
    if output.step is not None:
        write_step(output.step, message.step)
    if output.finish_reason is not None:
        message.finish_reason = FINISH_NUMBERS[output.finish_reason]
    if output.usage is not None:
        message.usage.CopyFrom(write_usage(output.usage))
    if output.timings is not None:
        message.timings.CopyFrom(write_timings(output.timings))
    if output.error is not None:
        message.error.CopyFrom(_error(output.error))
    return message


@lru_cache(_MOST_KNOWN_STEPS)
def _of_tokens(step: SpeculationStep | None) -> verify_pb2.RequestOutput:
    """An output of such a step, to be filled in with each request's tokens, by one thread.

    A message that is made anew takes memory of its own, and more where fields are looked at before they are set. Each
    time protobuf has freed ten thousand pieces it has the C library give all unused memory back to the system, which
    takes milliseconds in which no thread of Python runs.
    """
    message = verify_pb2.RequestOutput()
    message.token_ids.append(0)
    if step is not None:
        write_step(step, message.step)
    return message


def _prompt_logprobs(scores: PromptScores) -> sampling_pb2.PromptLogprobs:
    return sampling_pb2.PromptLogprobs(
        first_position=scores.first,
        logprobs=scores.logprobs.tolist(),
        ranks=scores.ranks.tolist(),
        top=scores.top_ids.shape[1],
        top_ids=scores.top_ids.ravel().tolist(),
        top_logprobs=scores.top_logprobs.ravel().tolist(),
    )


def _error(error: SlipstreamError) -> sampling_pb2.Error:
    code: int = codes_of(error).status.value[0]
    return sampling_pb2.Error(code=code, message=error.message, field=error.field, retry_after=error.retry_after)


def _adapter(adapter: Adapter) -> verify_pb2.Adapter:
    return verify_pb2.Adapter(name=adapter.name, id=adapter.id, rank=adapter.rank, path=adapter.path)


def _adapter_state(state: AdapterState) -> verify_pb2.AdapterState:
    return verify_pb2.AdapterState(
        adapter=_adapter(state.adapter),
        leaving=state.leaving,
        running=state.running,
        waiting=state.waiting,
        requests=state.requests,
    )


def _adapters(loaded: AdapterList) -> verify_pb2.AdapterList:
    return verify_pb2.AdapterList(version=loaded.version, adapters=map(_adapter, loaded.adapters))


def decode_load(data: bytes) -> tuple[str, str]:
    """Name and path of a LoadAdapterRequest. InvalidArgumentError if the bytes are none."""
    try:
        message = verify_pb2.LoadAdapterRequest.FromString(data)
    except DecodeError as error:
        raise InvalidArgumentError(f"not a LoadAdapterRequest: {error}") from error
    return message.name, message.path


def encode_loaded(adapter: Adapter, loaded: AdapterList) -> bytes:
    """A LoadAdapterResponse."""
    return verify_pb2.LoadAdapterResponse(adapter=_adapter(adapter), loaded=_adapters(loaded)).SerializeToString()


def decode_unload(data: bytes) -> str:
    """The name of an UnloadAdapterRequest. InvalidArgumentError if the bytes are none."""
    try:
        return verify_pb2.UnloadAdapterRequest.FromString(data).name
    except DecodeError as error:
        raise InvalidArgumentError(f"not an UnloadAdapterRequest: {error}") from error


def encode_unloaded(loaded: AdapterList) -> bytes:
    """An UnloadAdapterResponse."""
    return verify_pb2.UnloadAdapterResponse(loaded=_adapters(loaded)).SerializeToString()


def encode_info(
    facts: ServerInfo,
    proposers: Sequence[ProposerStatus],
    default: str | None,
    refusals: Sequence[Refusal] = (),
    serving_seconds: float = 0.0,
    preparing: Collection[str] = (),
    adapters: AdapterList | None = None,
) -> bytes:
    """A GetInfoResponse. `preparing` names attached proposers for which work ahead is not done."""
    return verify_pb2.GetInfoResponse(
        model_name=facts.model_name,
        model_path=facts.model_path,
        model_fingerprint=facts.model_fingerprint,
        tokenizer_fingerprint=facts.tokenizer_fingerprint,
        vocab_size=facts.vocab_size,
        max_context=facts.max_context,
        max_running=facts.max_running,
        max_queued=facts.max_queued,
        eos_token_ids=facts.eos_token_ids,
        mode=facts.mode,
        device=facts.device,
        page_size=facts.page_size,
        num_pages=facts.num_pages,
        proposers=[_proposer(each, preparing=each.name in preparing) for each in proposers],
        default_proposer=default or "",
        max_nodes=facts.max_nodes,
        process_id=facts.process_id,
        version=facts.version,
        attention=facts.attention,
        tensor_parallel_size=facts.tensor_parallel_size,
        gpu_uuid=facts.gpu_uuid,
        refusals=[verify_pb2.ProposerRefusal(**asdict(refusal)) for refusal in refusals],
        serving_seconds=serving_seconds,
        cache_events=facts.prefix_cache,
        adapters=None if adapters is None else _adapters(adapters),
        max_adapters=facts.max_adapters,
        max_adapter_rank=facts.max_adapter_rank,
        kv_cache_dtype=facts.kv_cache_dtype,
    ).SerializeToString()


def _proposer(status: ProposerStatus, *, preparing: bool) -> verify_pb2.ProposerStatus:
    message = verify_pb2.ProposerStatus(name=status.name, configured=status.configured)
    if status.attachment is not None:
        message.attached, message.preparing = True, preparing
        message.process_id = status.attachment.request.process_id
        message.address = status.attachment.request.address
        message.epoch = status.attachment.epoch
        message.transport = status.attachment.transport.name if status.attachment.transport else ""
        message.transport_reason = status.attachment.transport_reason
        message.overlap = status.attachment.overlap
        message.device, message.gpu_uuid = status.attachment.place_of(status.name)
    return message


def encode_state(loop: LoopState, link: LinkState) -> bytes:
    """A GetStateResponse."""
    return verify_pb2.GetStateResponse(
        running=loop.running,
        queued=loop.queued,
        pages_total=loop.pages_total,
        pages_free=loop.pages_free,
        pages_cached=loop.pages_cached,
        steps=loop.steps,
        committed_tokens=loop.committed_tokens,
        drafted_tokens=loop.drafted_tokens,
        accepted_tokens=loop.accepted_tokens,
        preemptions=loop.preemptions,
        prefix_hit_tokens=loop.prefix_hit_tokens,
        draft_waits=link.waits,
        draft_misses=link.misses,
        stale_records=link.stale,
        malformed_records=link.malformed,
        attachments=link.attachments,
        draining=loop.draining,
        draft_deadline_us=round(1e6 * link.deadline),
        drafters=map(_drafter, link.drafters),
        oldest_wait_seconds=0.0 if loop.oldest_arrival is None else max(0.0, time.monotonic() - loop.oldest_arrival),
        prompt_tokens=loop.prompt_tokens,
        adapters=map(_adapter_state, loop.adapters),
        forecast=verify_pb2.SpeculationForecast(**asdict(loop.forecast)) if loop.forecast.steps else None,
    ).SerializeToString()


def _drafter(state: DrafterState) -> verify_pb2.DrafterState:
    return verify_pb2.DrafterState(
        epoch=state.epoch,
        name=state.name,
        address=state.address,
        process_id=state.process_id,
        transport=state.transport,
        proposer=state.proposer,
        requests=state.requests,
        share=state.share,
        catching_up=state.catching_up,
        hits=state.stats.hits,
        misses=state.stats.misses,
        late=state.stats.late,
        drafted_tokens=state.stats.drafted,
        accepted_tokens=state.stats.accepted,
        sources=map(write_source, state.stats.sources.values()),
        waits=state.stats.waits,
        stale_records=state.stale,
        answer_us=round(1e6 * (state.answer or 0.0)),
        deadline_us=round(1e6 * state.deadline),
    )
