"""The Prometheus endpoint of a service, and families of what is counted without the client library's locks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from threading import Thread
from typing import TYPE_CHECKING, Final
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.utils import floatToGoString

from slipstream.bucket_counts import BucketCounts, PositionCounts
from slipstream.rpc.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

_OPEN_METRICS: Final = "application/openmetrics-text"


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

    UnavailableError if the address cannot be bound.
    """
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise UnavailableError(f"cannot listen on {host}:{port}, --metrics-port: {error.strerror or error}") from error
    server.set_app(_keeping_names(server.get_app()))
    return MetricsEndpoint(server.server_port, server, thread)


def keeping_names(accept: str) -> str:
    """A header Accept under which prometheus_client writes names as they are, where `accept` has OpenMetrics.

    By itself it replaces the colon of vLLM's names in samples, and leaves it in what is said of their type
    (https://github.com/prometheus/client_python/issues/1177). All names are such as every scraper reads.
    """
    return f"{_OPEN_METRICS};version=1.0.0;escaping=allow-utf-8" if _OPEN_METRICS in accept else accept


def _keeping_names(app: WSGIApplication | None) -> WSGIApplication:
    assert app is not None

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        environ["HTTP_ACCEPT"] = keeping_names(environ.get("HTTP_ACCEPT", ""))
        return app(environ, start_response)

    return answer


def histogram_family(name: str, text: str, values: BucketCounts) -> HistogramMetricFamily:
    """A histogram of counted values."""
    bounds = [*map(floatToGoString, values.bounds), "+Inf"]
    now = values.copy()
    return HistogramMetricFamily(
        name, text, list(zip(bounds, map(float, accumulate(now.counts)), strict=True)), now.total
    )


def position_family(name: str, text: str, accepted: PositionCounts) -> CounterMetricFamily:
    """A counter with the label `position`, from 0 on."""
    family = CounterMetricFamily(name, text, labels=("position",))
    for position, count in enumerate(accepted.by_position()):
        family.add_metric((str(position),), count)
    return family
