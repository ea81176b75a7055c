from __future__ import annotations

from dataclasses import asdict, replace

from prometheus_client import CollectorRegistry

from support.metrics_states import LOOP
from verify_service.draft_link.link_state import LinkState
from verify_service.server.metrics.verify_metrics import VerifyMetrics
from verify_service.speculation.forecast import Forecast


def test_every_sum_is_told() -> None:
    forecast, registry = Forecast(7, 5, 21.0, 0.75, 7.0, 0.5), CollectorRegistry()
    loop = replace(LOOP, forecast=forecast)
    VerifyMetrics(registry).watch(lambda: loop, lambda: LinkState(0, 0, 0, 0, 0, 0, 0.0, ()))
    for name, value in asdict(forecast).items():
        assert registry.get_sample_value(f"slipstream_forecast_{name}_total") == value
