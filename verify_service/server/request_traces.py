"""One span a request in this service: a child of the gateway's, from its arrival to its last output."""

from __future__ import annotations

import time
from collections.abc import Iterable

from slipstream.generation_types import FinishReason
from slipstream.rpc.errors import codes_of
from slipstream.tracing import names
from slipstream.tracing.tracer import Span, Tracer, Value
from verify_service.core.request import GenerationRequest, RequestKey, StepOutput

_SERVER_FAULT = 500
"""HTTP codes from here on are the service's fault."""


class RequestTraces:
    """The spans of requests under way that are recorded. Belongs to the event loop's thread.

    Attributes have names of our own: a trace whose spans all had tokens under `gen_ai.usage` would count them twice.
    """

    __slots__ = ("_begun", "_started", "_tracer")

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._begun: dict[RequestKey, tuple[Span, float, dict[str, Value]]] = {}
        self._started: dict[RequestKey, float] = {}

    def begin(self, request: GenerationRequest) -> None:
        """A request has come, and is queued or refused."""
        span = self._tracer.start(names.SPAN_VERIFY, request.context, request.arrival)
        if span.recording:
            told: dict[str, Value] = {
                names.REQUEST_ID: request.context.request_id or None,
                names.CHOICE: request.choice_index,
                names.PROMPT_TOKENS: len(request.prompt_token_ids),
                names.PRIOR_TOKENS: len(request.output_token_ids),
            }
            self._begun[request.key] = span, request.arrival, told

    def start(self, keys: Iterable[RequestKey]) -> None:
        """Requests begin to run, as this thread learns: later than they did, so their own timings go before this."""
        if self._begun:
            now = time.monotonic()
            self._started.update((key, now) for key in keys if key in self._begun)

    def finish(self, outputs: Iterable[StepOutput]) -> None:
        """What one step yielded: some of it may be last outputs."""
        if self._begun:
            for output in outputs:
                if output.finish_reason is not None:
                    self._end(output.key, output)

    def drop(self, session_id: int) -> None:
        """A client's session is over, and with it all requests that it left."""
        for key in [key for key in self._begun if key.session_id == session_id]:
            self._end(key, StepOutput(key, finish_reason=FinishReason.CANCELLED))

    def close(self, seconds: float) -> None:
        """Send what has not been sent, for as long at most. Waits."""
        self._tracer.close(seconds)

    def _end(self, key: RequestKey, output: StepOutput) -> None:
        span, arrival, told = self._begun.pop(key, (None, 0.0, {}))
        if span is None:
            return
        timings, started = output.timings, self._started.pop(key, None)
        if started is not None:
            span.add_event(names.EVENT_STARTED, started if timings is None else arrival + timings.queued)
        if timings is not None and timings.first_token:
            span.add_event(names.EVENT_FIRST_TOKEN, arrival + timings.first_token)
        if output.finish_reason is not None:
            told[names.FINISH_REASON] = output.finish_reason.value
        if (usage := output.usage) is not None:
            told |= {
                names.CACHED_TOKENS: usage.cached_tokens,
                names.OUTPUT_TOKENS: usage.completion_tokens,
                names.VERIFY_STEPS: usage.verify_steps,
                names.DRAFTED_TOKENS: usage.drafted_tokens,
                names.ACCEPTED_TOKENS: usage.accepted_tokens,
            }
        code = None if output.error is None else codes_of(output.error)
        told[names.ERROR_TYPE] = None if code is None else code.openai_type
        span.end(told, failed=code is not None and code.http >= _SERVER_FAULT)
