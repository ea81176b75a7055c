"""The SDK's exporter by OTLP over gRPC, with spans written in a third of the processor time. Needs the extra `otel`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, SpanFlags, Status
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

_KINDS: Final = {
    SpanKind.INTERNAL: Span.SPAN_KIND_INTERNAL,
    SpanKind.SERVER: Span.SPAN_KIND_SERVER,
    SpanKind.CLIENT: Span.SPAN_KIND_CLIENT,
    SpanKind.PRODUCER: Span.SPAN_KIND_PRODUCER,
    SpanKind.CONSUMER: Span.SPAN_KIND_CONSUMER,
}
_CODES: Final = {
    StatusCode.UNSET: Status.STATUS_CODE_UNSET,
    StatusCode.OK: Status.STATUS_CODE_OK,
    StatusCode.ERROR: Status.STATUS_CODE_ERROR,
}
_LOCAL: Final = int(SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK)
_REMOTE: Final = _LOCAL | int(SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK)

_Known = dict[str, tuple[Any, bytes]]
"""The value of each attribute of a batch's spans, and the bytes of a span that has it alone."""
_VARIES: Final[tuple[Any, bytes]] = None, b""


class OtlpExporter(OTLPSpanExporter):
    """As its base, which writes spans by itself in versions that do not ask this class."""

    def _translate_data(self, data: Sequence[ReadableSpan]) -> ExportTraceServiceRequest:
        return export_request(data)


def export_request(spans: Sequence[ReadableSpan]) -> ExportTraceServiceRequest:
    """The message for spans of one resource and scope, without links: as `encode_spans` of the SDK makes it.

    Attributes of a span stand in any order.
    """
    request = ExportTraceServiceRequest()
    resource, scope = spans[0].resource, spans[0].instrumentation_scope
    part = request.resource_spans.add(schema_url=resource.schema_url)
    _write_attributes(resource.attributes.items(), part.resource.attributes)
    own = part.scope_spans.add()
    if scope is not None:
        own.scope.name, own.scope.version, own.schema_url = scope.name, scope.version or "", scope.schema_url or ""
    known: _Known = {}
    for span in spans:
        _write_span(span, own.spans.add(), known)
    return request


def _write_span(span: ReadableSpan, message: Span, known: _Known) -> None:
    """Fields one by one, in place: keywords of `add`, and copies of a whole span, take longer."""
    own, parent = span.context, span.parent
    message.trace_id = own.trace_id.to_bytes(16, "big")
    message.span_id = own.span_id.to_bytes(8, "big")
    if own.trace_state:
        message.trace_state = own.trace_state.to_header()
    message.name = span.name
    message.kind = _KINDS[span.kind]
    message.start_time_unix_nano = span.start_time or 0
    message.end_time_unix_nano = span.end_time or 0
    message.dropped_attributes_count = span.dropped_attributes
    message.flags = _REMOTE if parent is not None and parent.is_remote else _LOCAL
    if parent is not None:
        message.parent_span_id = parent.span_id.to_bytes(8, "big")
    if attributes := span.attributes:
        _write_attributes_of_span(attributes, message, known)
    for event in span.events:
        told = message.events.add()
        told.name, told.time_unix_nano = event.name, event.timestamp
        if event.attributes:
            _write_attributes(event.attributes.items(), told.attributes)
    message.status.code = _CODES[span.status.status_code]


def _write_attributes_of_span(attributes: Mapping[str, Any], message: Span, known: _Known) -> None:
    """Merge what all spans so far had alike as it was serialised once, in one call; write the rest.

    The bytes of messages one after another are those of the messages merged (Protocol Buffers, encoding).
    """
    alike, varying = [], []
    for item in attributes.items():
        key, value = item
        former = known.get(key)
        if former is None:
            alone = Span()
            _write_attributes((item,), alone.attributes)
            known[key] = former = value, alone.SerializeToString()
        if former is not _VARIES and former[0] == value and type(former[0]) is type(value):
            alike.append(former[1])
        else:
            known[key] = _VARIES
            varying.append(item)
    message.MergeFromString(b"".join(alike))
    _write_attributes(varying, message.attributes)


def _write_attributes(items: Iterable[tuple[str, Any]], message: Any) -> None:
    """Append to a repeated field of KeyValue; keywords of `add` take longer."""
    for key, value in items:
        entry: KeyValue = message.add()
        entry.key = key
        kind = type(value)
        if kind is str:
            entry.value.string_value = value
        elif kind is int:
            entry.value.int_value = value
        elif kind is float:
            entry.value.double_value = value
        elif kind is bool:
            entry.value.bool_value = value
        else:
            _write_list(value, entry.value)


def _write_list(values: Iterable[Any], message: AnyValue) -> None:
    """Texts, as all lists among our attributes are; what else a resource may have becomes text."""
    message.array_value.values.extend([AnyValue(string_value=str(value)) for value in values])
