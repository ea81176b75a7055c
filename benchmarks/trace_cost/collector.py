"""A collector of spans in a process of its own, so that none of its time is the services'."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

START_SECONDS = 60.0


@contextmanager
def collector() -> Iterator[tuple[str, Callable[[], int]]]:
    """A running one: its endpoint, and how many spans it has received so far."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there,), daemon=True)
    process.start()
    try:
        if not here.poll(START_SECONDS):
            raise SystemExit("the collector of spans does not start")
        yield here.recv(), lambda: _count(here)
    finally:
        process.terminate()
        process.join()


def _count(pipe: Connection) -> int:
    pipe.send(None)
    return int(pipe.recv())


def _serve(pipe: Connection) -> None:
    import grpc
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

    count = 0

    class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802  # of gRPC
            nonlocal count
            count += sum(len(scope.spans) for part in request.resource_spans for scope in part.scope_spans)
            return trace_service_pb2.ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(1))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Receiver(), server)  # type: ignore[no-untyped-call]  # generated
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    pipe.send(f"http://127.0.0.1:{port}")
    while True:
        pipe.recv()
        pipe.send(count)
