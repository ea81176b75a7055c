"""The Prometheus endpoint of a service."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Thread
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server


@dataclass(frozen=True, slots=True)
class MetricsEndpoint:
    """A running endpoint; `port` is the bound one."""

    port: int
    server: WSGIServer
    thread: Thread

    def close(self) -> None:
        """Stop answering and join the thread."""
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def serve_metrics(port: int, registry: CollectorRegistry, *, host: str = "127.0.0.1") -> MetricsEndpoint:
    """Serve `registry` at http://host:port/metrics from a thread of its own; port 0 binds a free one.

    OSError if the address cannot be bound.
    """
    server, thread = start_http_server(port, addr=host, registry=registry)
    return MetricsEndpoint(server.server_port, server, thread)
