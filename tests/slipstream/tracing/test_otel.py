"""Spans as the SDK's exporters get them: beside those that the SDK itself makes of the same things."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from slipstream.request_context import RequestContext
from slipstream.tracing.otel import OtelTracer

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
VALUES = {"text": "a", "whole": 7, "part": 0.5, "yes": True, "list": ["a", "b"], "none": None}


class Recorded:
    """A tracer, and what it has sent once it is closed."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracer = OtelTracer("service", self._exporter)

    def spans(self) -> tuple[ReadableSpan, ...]:
        self.tracer.close(60)
        return self._exporter.get_finished_spans()


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    made = Recorded()
    yield made
    made.tracer.close(60)


def parent(flags: str) -> RequestContext:
    return RequestContext("id-1", f"00-{TRACE}-{SPAN}-{flags}", "a=1")


def of_the_sdk(context: RequestContext) -> ReadableSpan:
    """The span of the SDK's own tracer, from the same environment."""
    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    carrier = {"traceparent": context.traceparent, "tracestate": context.tracestate}
    told = TraceContextTextMapPropagator().extract(carrier, Context())
    provider.get_tracer("slipstream").start_span("chat", told, SpanKind.SERVER).end()
    (span,) = kept.get_finished_spans()
    return span


@pytest.mark.parametrize("context", [parent("01"), parent("03"), RequestContext("id-1")])
def test_it_is_what_the_sdk_makes_of_it(recorded: Recorded, context: RequestContext) -> None:
    begun = time.monotonic()
    span = recorded.tracer.start("chat", context, begun)
    assert span.recording
    span.add_event("first_token", begun + 0.5, {"at": 3, "none": None})
    span.end(VALUES, name="chat model", failed=True)
    span.end({"again": 1})
    (made,), wanted = recorded.spans(), of_the_sdk(context)
    own, other = made.get_span_context(), wanted.get_span_context()
    assert own is not None and other is not None
    assert (own.trace_flags, own.trace_state, made.kind) == (other.trace_flags, other.trace_state, wanted.kind)
    assert made.parent == wanted.parent
    if context.traceparent:
        assert own.trace_id == int(TRACE, 16) == other.trace_id
    assert own.span_id != int(SPAN, 16)
    assert span.context == RequestContext(
        "id-1", f"00-{own.trace_id:032x}-{own.span_id:016x}-{own.trace_flags:02x}", context.tracestate
    )
    assert made.name == "chat model" and made.status.status_code is StatusCode.ERROR
    assert dict(made.attributes or {}) == {name: value for name, value in VALUES.items() if value is not None}
    assert made.start_time is not None and made.end_time is not None
    (event,) = made.events
    assert (event.name, dict(event.attributes or {})) == ("first_token", {"at": 3})
    assert abs(event.timestamp - made.start_time - 0.5e9) < 1e3
    assert abs(made.start_time - time.time_ns()) < 60e9
    assert made.start_time <= made.end_time


def test_what_the_sampler_leaves_out_is_not_sent_and_handed_on_as_left_out(
    monkeypatch: pytest.MonkeyPatch, recorded: Recorded
) -> None:
    span = recorded.tracer.start("chat", parent("00"), time.monotonic())
    assert (span.recording, span.trace_id) == (False, "")
    assert span.context.traceparent.startswith(f"00-{TRACE}-") and span.context.traceparent.endswith("-00")
    span.add_event("first_token", time.monotonic())
    span.end(VALUES)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    off = Recorded()
    assert not off.tracer.start("chat", RequestContext("id-2"), time.monotonic()).recording
    assert off.spans() == recorded.spans() == ()


def test_limits_of_attributes_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "3")
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "2")
    limited = Recorded()
    limited.tracer.start("chat", RequestContext("id-1"), time.monotonic()).end({"a": "abcdef", "b": 1, "c": "xyz"})
    (span,) = limited.spans()
    assert dict(span.attributes or {}) == {"b": 1, "c": "xyz"}
    assert span.dropped_attributes == 1
