"""When the spans of the verify service end, and what they say then."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from slipstream.generation_types import FinishReason, Timings, Usage
from slipstream.request_context import RequestContext
from slipstream.rpc.errors import InternalError, ResourceExhaustedError, SlipstreamError
from slipstream.tracing import names
from slipstream.tracing.otel import OtelTracer
from verify_service.core.request import GenerationRequest, RequestKey, StepOutput
from verify_service.server.request_traces import RequestTraces

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-"
KEY = RequestKey(1, 7)
SECRET = "zanzibar"


class Traced:
    """The spans of a service that ends when they are read."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.traces = RequestTraces(OtelTracer("verify", self._exporter))

    def begin(self, key: RequestKey = KEY, flags: str = "01") -> None:
        context = RequestContext("id-1", PARENT + flags)
        self.traces.begin(GenerationRequest(key, (5, 6, 7), time.monotonic(), (8,), context=context))

    def finished(self) -> list[ReadableSpan]:
        self.traces.close(60.0)
        return list(self._exporter.get_finished_spans())


@pytest.fixture
def traced() -> Iterator[Traced]:
    traced = Traced()
    yield traced
    traced.traces.close(60.0)


def test_a_span_ends_with_the_last_output_and_says_what_became_of_it(traced: Traced) -> None:
    traced.begin()
    traced.traces.start([KEY, RequestKey(2, 7)])
    assert set(traced.traces._started) == {KEY}
    traced.traces.finish([StepOutput(KEY, (9,)), StepOutput(RequestKey(2, 7), finish_reason=FinishReason.STOP)])
    usage = Usage(3, 4, 2, 3, 5, 1)
    traced.traces.finish(
        [StepOutput(KEY, (9,), finish_reason=FinishReason.STOP, usage=usage, timings=Timings(0.5, 1, 2))]
    )
    (span,) = traced.finished()
    assert dict(span.attributes or {}) == {
        names.REQUEST_ID: "id-1", names.CHOICE: 0, names.PROMPT_TOKENS: 3, names.PRIOR_TOKENS: 1,
        names.CACHED_TOKENS: 2, names.OUTPUT_TOKENS: 4, names.VERIFY_STEPS: 3, names.DRAFTED_TOKENS: 5,
        names.ACCEPTED_TOKENS: 1, names.FINISH_REASON: "stop",
    }  # fmt: skip
    assert [event.name for event in span.events] == ["started", "first_token"]
    assert span.start_time is not None
    for event, at in zip(span.events, (0.5e9, 1e9), strict=True):
        assert abs(event.timestamp - span.start_time - at) < 1e6
    assert not traced.traces._started
    assert span.parent is not None and f"{span.parent.span_id:016x}" in PARENT


@pytest.mark.parametrize(("error", "failed"), [(ResourceExhaustedError(SECRET), False), (InternalError(SECRET), True)])
def test_an_error_is_told_by_its_kind(traced: Traced, error: SlipstreamError, failed: bool) -> None:
    traced.begin()
    traced.traces.finish([StepOutput(KEY, finish_reason=FinishReason.ERROR, error=error)])
    (span,) = traced.finished()
    assert (span.attributes or {})[names.ERROR_TYPE] == ("internal_error" if failed else "rate_limit_error")
    assert span.status.is_ok is not failed
    assert SECRET not in span.to_json()


def test_requests_of_a_session_that_ends_are_cancelled_and_no_others(traced: Traced) -> None:
    traced.begin()
    traced.begin(RequestKey(2, 7))
    traced.traces.start([KEY])
    traced.traces.drop(1)
    traced.traces.drop(1)
    (span,) = traced.finished()
    assert [event.name for event in span.events] == ["started"]
    assert (span.attributes or {})[names.FINISH_REASON] == "cancelled"


def test_nothing_is_kept_of_what_the_caller_does_not_sample(traced: Traced) -> None:
    traced.begin(flags="00")
    assert not traced.traces._begun
    traced.traces.finish([StepOutput(KEY, finish_reason=FinishReason.STOP)])
    assert not traced.finished()
