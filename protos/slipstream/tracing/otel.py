"""Spans of OpenTelemetry, sent in batches by a thread of its SDK. Needs the extra `otel`.

Sampler, resource, limits of spans and queue, and the exporter are those that the standard OTEL_* variables name.
"""

from __future__ import annotations

import os
import threading
import time
from importlib.metadata import entry_points
from typing import Any, Final, cast

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanKind, StatusCode
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


class OtelTracer:
    """Spans of kind SERVER, all of one provider that is not the process's global one."""

    def __init__(self, service: str, exporter: SpanExporter) -> None:
        """`service` is what `service.name` says unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES do."""
        self._provider = TracerProvider(resource=_resource(service), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("slipstream", __version__)

    def start(self, name: str, context: RequestContext, begun: float) -> OtelSpan:
        """See Tracer."""
        offset = time.time_ns() - time.monotonic_ns()
        carrier = {"traceparent": context.traceparent, "tracestate": context.tracestate}
        parent = _PROPAGATOR.extract(carrier, Context()) if context.traceparent else Context()
        span = self._tracer.start_span(name, parent, SpanKind.SERVER, start_time=_nanoseconds(begun, offset))
        return OtelSpan(span, context.request_id, offset)

    def close(self, seconds: float) -> None:
        """See Tracer. The SDK's own end may take longer than it is told, and is then left alone."""
        closing = threading.Thread(target=self._provider.shutdown, name="tracing ends", daemon=True)
        closing.start()
        closing.join(seconds)


class OtelSpan:
    """See Span. `offset` is the time since the epoch at time.monotonic() 0, in nanoseconds."""

    __slots__ = ("_offset", "_span", "context", "recording", "trace_id")

    def __init__(self, span: Span, request_id: str, offset: int) -> None:
        self._span, self._offset = span, offset
        own = span.get_span_context()
        self.recording = span.is_recording()
        self.trace_id = f"{own.trace_id:032x}" if self.recording else ""
        parent = f"00-{own.trace_id:032x}-{own.span_id:016x}-{own.trace_flags:02x}"
        self.context = RequestContext(request_id, parent, own.trace_state.to_header())

    def add_event(self, name: str, at: float, attributes: Attributes = NONE) -> None:
        self._span.add_event(name, _known(attributes), _nanoseconds(at, self._offset))

    def end(self, attributes: Attributes = NONE, *, name: str = "", failed: bool = False) -> None:
        if name:
            self._span.update_name(name)
        self._span.set_attributes(cast(Any, _known(attributes)))
        if failed:
            self._span.set_status(StatusCode.ERROR)
        self._span.end(_nanoseconds(time.monotonic(), self._offset))


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
    made: SpanExporter = found[0].load()(**({"endpoint": endpoint} if endpoint else {}))
    return made


def _resource(service: str) -> Resource:
    """Resource.create lets what it is given win over the variables."""
    own = Resource({"service.name": service, "service.version": __version__})
    told = Resource.create()
    named = str(told.attributes.get("service.name", ""))
    return told.merge(own) if named.startswith("unknown_service") else own.merge(told)


def _known(attributes: Attributes) -> OtelAttributes:
    return cast(OtelAttributes, {name: value for name, value in attributes.items() if value is not None})


def _nanoseconds(seconds: float, offset: int) -> int:
    return int(seconds * 1e9) + offset
