"""Spans of OpenTelemetry, sent in batches by a thread of its SDK. Needs the extra `otel`.

Sampler, resource, limits of spans and queue, and the exporter are those that the standard OTEL_* variables name.
"""

from __future__ import annotations

import os
import re
import threading
import time
from importlib.metadata import entry_points
from typing import Any, Final, cast

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import Attributes as OtelAttributes

from slipstream import __version__
from slipstream.request_context import RequestContext
from slipstream.rpc.errors import FailedPreconditionError
from slipstream.tracing.tracer import NONE, Attributes

OTLP: Final = "otlp"
_PROTOCOLS: Final = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}
_GROUP: Final = "opentelemetry_traces_exporter"
_PROPAGATOR: Final = TraceContextTextMapPropagator()
_NO_PARENT: Final = (Context(), None)
_TRACEPARENT: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})", re.ASCII)
"""A header that the propagator has nothing to add to, which takes twice the time."""
_FLAGS: Final = {
    (sampled, random): TraceFlags(sampled * TraceFlags.SAMPLED | random * TraceFlags.RANDOM_TRACE_ID)
    for sampled in (False, True)
    for random in (False, True)
}
_FAILED: Final = Status(StatusCode.ERROR)
_UNSET: Final = Status(StatusCode.UNSET)
_MANY: Final = 128
"""Attributes of a span, where the SDK has no limit."""


class OtelTracer:
    """Spans of kind SERVER. Sampler, ids and resource are those of a provider that is not the process's global one.

    A span is handed to the SDK once it is complete, as the SDK's own spans take several times the processor time.
    """

    def __init__(self, service: str, exporter: SpanExporter) -> None:
        """`service` is what `service.name` says unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES do."""
        self._provider = TracerProvider(resource=_resource(service), shutdown_on_exit=False)
        self._processor = BatchSpanProcessor(exporter)
        self._provider.add_span_processor(self._processor)
        self._scope = InstrumentationScope("slipstream", __version__)
        self._resource = self._provider.resource
        self._limits = SpanLimits()
        self._longest, self._most = self._limits.max_span_attribute_length, self._limits.max_span_attributes or _MANY

    def start(self, name: str, context: RequestContext, begun: float) -> OtelSpan:
        """See Tracer."""
        told, parent = _parent(context) if context.traceparent else _NO_PARENT
        ids = self._provider.id_generator
        trace_id = ids.generate_trace_id() if parent is None else parent.trace_id
        sampled = self._provider.sampler.should_sample(told, trace_id, name, SpanKind.SERVER)
        random = ids.is_trace_id_random() if parent is None else parent.trace_flags.random_trace_id
        flags = _FLAGS[sampled.decision is Decision.RECORD_AND_SAMPLE, random]
        own = SpanContext(trace_id, ids.generate_span_id(), False, flags, sampled.trace_state)
        return OtelSpan(self, name, own, parent, begun, context.request_id, sampled.attributes)

    def finish(self, span: OtelSpan, attributes: dict[str, Any], *, failed: bool) -> None:
        """Have a span sent, as it is now."""
        limits = self._limits
        if self._longest is not None or len(attributes) > self._most:
            attributes = cast(
                Any,
                BoundedAttributes(
                    limits.max_span_attributes, attributes, max_value_len=limits.max_span_attribute_length
                ),
            )
        done = ReadableSpan(
            name=span.name,
            context=span.own,
            parent=span.parent,
            resource=self._resource,
            attributes=attributes,
            events=span.events,
            kind=SpanKind.SERVER,
            status=_FAILED if failed else _UNSET,
            start_time=_nanoseconds(span.begun, span.offset),
            end_time=_nanoseconds(time.monotonic(), span.offset),
            instrumentation_scope=self._scope,
        )
        self._processor.on_end(done)

    def close(self, seconds: float) -> None:
        """See Tracer. The SDK's own end may take longer than it is told, and is then left alone."""
        closing = threading.Thread(target=self._provider.shutdown, name="tracing ends", daemon=True)
        closing.start()
        closing.join(seconds)


class OtelSpan:
    """See Span. `offset` is the time since the epoch at time.monotonic() 0, in nanoseconds."""

    __slots__ = ("_attributes", "_tracer", "begun", "context", "events", "name", "offset", "own", "parent", "recording",
                 "trace_id")  # fmt: skip

    def __init__(
        self,
        tracer: OtelTracer,
        name: str,
        own: SpanContext,
        parent: SpanContext | None,
        begun: float,
        request_id: str,
        attributes: OtelAttributes,
    ) -> None:
        """`attributes` are the sampler's."""
        self._tracer, self._attributes = tracer, attributes
        self.name, self.own, self.parent, self.begun = name, own, parent, begun
        self.offset = time.time_ns() - time.monotonic_ns()
        self.events: list[Event] = []
        self.recording = own.trace_flags.sampled
        trace_id = f"{own.trace_id:032x}"
        self.trace_id = trace_id if self.recording else ""
        header = f"00-{trace_id}-{own.span_id:016x}-{own.trace_flags:02x}"
        self.context = RequestContext(request_id, header, own.trace_state.to_header() if own.trace_state else "")

    def add_event(self, name: str, at: float, attributes: Attributes = NONE) -> None:
        if self.recording:
            told = _known(attributes) if attributes else None
            self.events.append(Event(name, told, _nanoseconds(at, self.offset)))

    def end(self, attributes: Attributes = NONE, *, name: str = "", failed: bool = False) -> None:
        if not self.recording:
            return
        self.recording = False
        self.name = name or self.name
        told = _known(attributes)
        self._tracer.finish(self, {**self._attributes, **told} if self._attributes else told, failed=failed)


def _parent(context: RequestContext) -> tuple[Context, SpanContext | None]:
    """What a sampler is told of the span that is the parent, and which that is, if it is one."""
    found = None if context.tracestate else _TRACEPARENT.fullmatch(context.traceparent)
    if found is None:
        carrier = {"traceparent": context.traceparent, "tracestate": context.tracestate}
        told = _PROPAGATOR.extract(carrier, Context())
        parent = get_current_span(told).get_span_context()
    else:
        trace_id, span_id, flags = found.groups()
        parent = SpanContext(int(trace_id, 16), int(span_id, 16), True, TraceFlags(int(flags, 16)))
        told = set_span_in_context(NonRecordingSpan(parent), Context())
    return (told, parent) if parent.is_valid else _NO_PARENT


def make_exporter(name: str, endpoint: str) -> SpanExporter:
    """The exporter that OTEL_TRACES_EXPORTER calls `name`, or its default, OTLP in the protocol of the variables.

    `endpoint` takes the place of that of the variables, unless empty. FailedPreconditionError if it is not installed.
    """
    if name == OTLP:
        protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        name = _PROTOCOLS.get(protocol or "grpc", protocol or "")
    found = list(entry_points(group=_GROUP, name=name))
    if not found:
        known = ", ".join(sorted({entry.name for entry in entry_points(group=_GROUP)}))
        raise FailedPreconditionError(f"no exporter of traces named {name!r} is installed; there are {known}")
    if name == _PROTOCOLS["grpc"]:
        from slipstream.tracing.otlp_exporter import OtlpExporter

        return OtlpExporter(endpoint=endpoint or None)
    made: SpanExporter = found[0].load()(**({"endpoint": endpoint} if endpoint else {}))
    return made


def _resource(service: str) -> Resource:
    """Resource.create lets what it is given win over the variables."""
    own = Resource({"service.name": service, "service.version": __version__})
    told = Resource.create()
    named = str(told.attributes.get("service.name", ""))
    return told.merge(own) if named.startswith("unknown_service") else own.merge(told)


def _known(attributes: Attributes) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}


def _nanoseconds(seconds: float, offset: int) -> int:
    return int(seconds * 1e9) + offset
