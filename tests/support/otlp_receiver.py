"""A collector of OpenTelemetry's spans: the protocol's own gRPC service on a real port, which keeps what it is sent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2


@dataclass(frozen=True)
class Received:
    """One span. Ids are hexadecimal; times are nanoseconds since the epoch."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    trace_state: str
    kind: int
    failed: bool
    begun: int
    ended: int
    attributes: dict[str, Any]
    events: list[tuple[str, int, dict[str, Any]]] = field(default_factory=list)

    def event_names(self) -> list[str]:
        return [name for name, _, _ in self.events]


class OtlpReceiver(trace_service_pb2_grpc.TraceServiceServicer):
    """`spans` are those received so far, in the order of their arrival."""

    def __init__(self) -> None:
        self.spans: list[Received] = []
        self._changed = threading.Condition()
        self._server = grpc.server(ThreadPoolExecutor(2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port("127.0.0.1:0")

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop(0).wait()

    def Export(self, request: Any, context: Any) -> Any:
        found = [
            _read(span, service)
            for part in request.resource_spans
            for service in [_values(part.resource.attributes).get("service.name", "")]
            for scope in part.scope_spans
            for span in scope.spans
        ]
        with self._changed:
            self.spans += found
            self._changed.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    def wait_for(self, wanted: Callable[[Received], bool], count: int = 1, seconds: float = 60.0) -> list[Received]:
        """Spans that are wanted, once there are so many."""
        end = time.monotonic() + seconds
        with self._changed:
            while len(found := [span for span in self.spans if wanted(span)]) < count:
                assert self._changed.wait(end - time.monotonic()), self.spans
        return found


def _read(span: trace_pb2.Span, service: str) -> Received:
    return Received(
        service,
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.trace_state,
        span.kind,
        span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _values(span.attributes),
        [(event.name, event.time_unix_nano, _values(event.attributes)) for event in span.events],
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)
