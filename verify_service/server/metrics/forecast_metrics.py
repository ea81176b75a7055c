"""Prometheus metrics of what speculation was expected to bring."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric

from verify_service.speculation.forecast import Forecast


def forecast_metrics(forecast: Forecast) -> Iterator[Metric]:
    """Of steps of requests whose trees are as large as pays."""
    for field, text in (
        ("steps", "Steps of requests whose trees are as large as pays."),
        ("drafted_steps", "Those of them whose trees were to pay."),
        ("tokens", "Tokens that these steps were expected to yield as trees were asked for."),
        ("seconds", "Time that they were expected to take, waits for trees included."),
        ("plain_tokens", "Tokens that the same steps yield without trees."),
        ("plain_seconds", "Time that the same steps were expected to take without trees."),
    ):
        yield CounterMetricFamily(f"slipstream_forecast_{field}", text, value=getattr(forecast, field))
