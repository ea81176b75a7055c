"""The messages that spans are sent in are those of the SDK."""

from __future__ import annotations

import time

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from slipstream.request_context import RequestContext
from slipstream.tracing.otel import OTLP, OtelTracer, make_exporter
from slipstream.tracing.otlp_exporter import OtlpExporter, export_request

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

ALIKE = {"text": "a", "whole": 1, "one": 1, "yes": True, "list": ["a"]}


def in_order(request: ExportTraceServiceRequest) -> ExportTraceServiceRequest:
    """Attributes of a span have no order."""
    for span in request.resource_spans[0].scope_spans[0].spans:
        span.attributes.sort(key=lambda each: each.key)
    return request


def test_they_are_the_same() -> None:
    kept = InMemorySpanExporter()
    tracer = OtelTracer("service", kept)
    for context in (RequestContext("id-1"), RequestContext("id-2", PARENT), RequestContext("id-3", PARENT, "a=1,b=2")):
        span = tracer.start("chat", context, time.monotonic())
        span.add_event("queued", time.monotonic())
        span.add_event("resumed", time.monotonic(), {"from": "a", "position": 3})
        span.end({"text": "ä", "whole": 2**62, "part": 0.5, "no": False, "list": ["a", "b"], "empty": []}, failed=True)
        tracer.start("verify", context, time.monotonic()).end()
    tracer.close(60)
    spans = kept.get_finished_spans()
    assert len(spans) == 6
    assert in_order(export_request(spans)) == in_order(encode_spans(spans))


def test_values_that_most_spans_have_alike_are_those_of_each() -> None:
    kept = InMemorySpanExporter()
    tracer = OtelTracer("service", kept)
    for values in (ALIKE, ALIKE, {**ALIKE, "whole": 2, "text": "b"}, {"yes": 1, "one": 1.0}, ALIKE, {}, {"yes": True}):
        tracer.start("chat", RequestContext("id-1"), time.monotonic()).end(values)
    tracer.close(60)
    spans = kept.get_finished_spans()
    made = in_order(export_request(spans))
    assert made == in_order(encode_spans(spans))
    kinds = [
        {each.key: each.value.WhichOneof("value") for each in span.attributes}
        for span in made.resource_spans[0].scope_spans[0].spans
    ]
    assert (kinds[0]["one"], kinds[3]["one"]) == ("int_value", "double_value")
    assert [kind.get("yes") for kind in kinds[2:]] == ["bool_value", "int_value", "bool_value", None, "bool_value"]


def test_the_exporter_of_otlp_writes_them() -> None:
    exporter = make_exporter(OTLP, "http://127.0.0.1:9")
    assert isinstance(exporter, OtlpExporter)
    exporter.shutdown()
