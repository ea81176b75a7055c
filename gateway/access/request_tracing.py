"""One span a request that generates, from what its access line tells: figures and names, and no word of a text."""

from __future__ import annotations

from typing import Final

from gateway.access.access_log import Access
from gateway.generation.generation import Generation
from slipstream.rpc.errors import codes_of
from slipstream.tracing import names
from slipstream.tracing.tracer import Tracer, Value

_SERVER_FAULT: Final = 500
"""HTTP codes from here on are the service's fault."""

_MOST: Final = 2**63 - 1
"""Of a whole number that OTLP can carry."""


class RequestTracing:
    """Begins and ends the spans. All that there is to say is said at the end: nothing is spent on a token."""

    __slots__ = ("_tracer", "_vllm_names")

    def __init__(self, tracer: Tracer, *, vllm_names: bool = False) -> None:
        """`vllm_names`: spans have the attributes that vLLM has used, too."""
        self._tracer = tracer
        self._vllm_names = vllm_names

    def begin(self, access: Access, operation: str) -> None:
        """A request has come that asks to generate; `operation` is one of the conventions' names."""
        access.operation = operation
        access.span = self._tracer.start(operation, access.context, access.begun)

    def end(self, access: Access) -> None:
        """The request is over."""
        span = access.span
        if not span.recording:
            return
        values = _of_request(access)
        if access.error is not None:  # the kind alone: a message may quote the request
            values[names.ERROR_TYPE] = codes_of(access.error).openai_type
        if (generation := access.generation) is not None:
            values.update(_of_generation(generation))
            if self._vllm_names:
                values |= _named_as_in_vllm(access, generation)
            for name, at in _moments(generation):
                span.add_event(name, at)
            for index, resumed in generation.resumes:
                told: dict[str, Value] = {
                    names.RESUMED_FROM: resumed.former,
                    names.RESUMED_TO: resumed.later,
                    names.RESUMED_POSITION: resumed.position,
                    names.CHOICE: index,
                }
                span.add_event(names.EVENT_RESUMED, resumed.at, told)
        error = access.error
        failed = error is not None and codes_of(error).http >= _SERVER_FAULT
        span.end(values, name=f"{access.operation} {access.model}".strip(), failed=failed)


def _of_request(access: Access) -> dict[str, Value]:
    host, port = access.server or (None, None)
    return {
        names.OPERATION_NAME: access.operation,
        names.PROVIDER_NAME: names.PROVIDER,
        names.OUTPUT_TYPE: names.OUTPUT_TEXT,
        names.REQUEST_MODEL: access.model or None,
        names.RESPONSE_MODEL: access.model or None,
        names.RESPONSE_ID: access.answer_id or None,
        names.REQUEST_STREAM: access.stream,
        names.REQUEST_ID: access.context.request_id or None,
        names.SERVER_ADDRESS: host,
        names.SERVER_PORT: port,
        names.HTTP_STATUS: int(access.status) if access.status.isdigit() else None,
        names.RPC_STATUS: access.status if access.status.isidentifier() else None,
    }


def _of_generation(generation: Generation) -> dict[str, Value]:
    sampling, usage, info = generation.requests[0].sampling, generation.usage, generation.info
    proposers = sorted(set().union(*(choice.proposers for choice in generation.choices)))
    count = len(generation.choices)
    return {
        names.REQUEST_MAX_TOKENS: sampling.max_tokens,
        names.REQUEST_TEMPERATURE: sampling.temperature,
        names.REQUEST_TOP_P: sampling.top_p,
        names.REQUEST_TOP_K: sampling.top_k,
        names.REQUEST_SEED: generation.seed if generation.seed <= _MOST else None,
        names.REQUEST_FREQUENCY_PENALTY: sampling.frequency_penalty,
        names.REQUEST_PRESENCE_PENALTY: sampling.presence_penalty,
        names.REQUEST_CHOICES: count if count > 1 else None,
        names.RESPONSE_FINISH_REASONS: [
            choice.finish_reason.value for choice in generation.choices if choice.finish_reason is not None
        ],
        names.RESPONSE_TIME_TO_FIRST_CHUNK: generation.first_token_seconds or None,
        names.USAGE_INPUT_TOKENS: usage.prompt_tokens,
        names.USAGE_OUTPUT_TOKENS: usage.completion_tokens,
        names.USAGE_CACHED_TOKENS: usage.cached_tokens,
        names.VERIFY_STEPS: usage.verify_steps,
        names.DRAFTED_TOKENS: usage.drafted_tokens,
        names.ACCEPTED_TOKENS: usage.accepted_tokens,
        names.ACCEPTANCE_LENGTH: usage.completion_tokens / usage.verify_steps if usage.verify_steps else None,
        names.PROPOSERS: proposers,
        names.RESUMES: len(generation.resumes),
        names.REPLICA: ",".join(generation.replicas) or None,
        names.FINGERPRINT: info.fingerprint,
        names.EXACT: info.exact,
    }


def _moments(generation: Generation) -> list[tuple[str, float]]:
    """When the request was handed to a verify service, and when its first token came."""
    first = generation.first_token_seconds
    moments = [(names.EVENT_QUEUED, generation.arrival)]
    return [*moments, (names.EVENT_FIRST_TOKEN, generation.arrival + first)] if first else moments


def _named_as_in_vllm(access: Access, generation: Generation) -> dict[str, Value]:
    """Times are those of the choice that ended last, as the verify service counts them, in seconds."""
    usage, times = generation.usage, generation.timings
    values: dict[str, Value] = {
        names.VLLM_REQUEST_ID: access.context.request_id or None,
        names.VLLM_N: len(generation.choices),
        names.VLLM_PROMPT_TOKENS: usage.prompt_tokens,
        names.VLLM_COMPLETION_TOKENS: usage.completion_tokens,
        names.VLLM_TIME_TO_FIRST_TOKEN: generation.first_token_seconds or None,
    }
    if times is not None:
        values |= {
            names.VLLM_TIME_IN_QUEUE: times.queued,
            names.VLLM_PREFILL: max(0.0, times.first_token - times.queued),
            names.VLLM_DECODE: max(0.0, times.total - times.first_token),
            names.VLLM_INFERENCE: max(0.0, times.total - times.queued),
            names.VLLM_E2E: times.total,
        }
    return values
