"""The endpoint answers with the registry's metrics."""

from __future__ import annotations

import urllib.request

from prometheus_client import CollectorRegistry, Counter

from slipstream.rpc.metrics import serve_metrics


def test_metrics_are_served() -> None:
    registry = CollectorRegistry()
    Counter("slipstream_sample", "A sample.", registry=registry).inc(3)
    endpoint = serve_metrics(0, registry)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{endpoint.port}/metrics", timeout=60) as reply:
            assert b"slipstream_sample_total 3.0" in reply.read()
    finally:
        endpoint.close()
