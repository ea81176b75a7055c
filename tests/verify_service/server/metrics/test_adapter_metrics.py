"""Adapters and the requests that use them appear under the documented names, where there is room for any."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, generate_latest

from slipstream.rpc.vllm_metrics import VERIFY_NAMES, with_vllm_names
from support.metrics_states import LOOP
from verify_service.draft_link.link_state import LinkState
from verify_service.server.metrics.verify_metrics import VerifyMetrics


def published(slots: int) -> CollectorRegistry:
    registry = CollectorRegistry()
    VerifyMetrics(registry).watch(lambda: LOOP, lambda: LinkState(0, 0, 0, 0, 0, 0, 0.0, ()), slots)
    return with_vllm_names(registry, VERIFY_NAMES, lambda: "m")


def test_requests_are_told_by_adapter() -> None:
    registry = published(4)
    assert registry.get_sample_value("slipstream_adapter_slots") == 4
    assert registry.get_sample_value("slipstream_adapters") == 1  # the other one is to go
    found = {
        name: [
            registry.get_sample_value(f"slipstream_adapter_requests_{figure}", {"adapter": name, "id": identity})
            for figure in ("running", "waiting", "total")
        ]
        for name, identity in (("red", "red@1"), ("blue", "blue@2"))
    }
    assert found == {"red": [2, 1, 9], "blue": [1, 0, 4]}


def test_load_balancers_read_names_from_labels_and_the_time_from_the_value() -> None:
    before = time.time()
    registry = published(4)
    labels = {"max_lora": "4", "running_lora_adapters": "red,blue", "waiting_lora_adapters": "red"}
    value = registry.get_sample_value("vllm:lora_requests_info", labels | {"model_name": "m", "engine": "0"})
    assert value is not None and before <= value <= time.time()


def test_without_room_for_adapters_there_is_nothing_of_them() -> None:
    assert b"adapter" not in generate_latest(published(0)) and b"lora" not in generate_latest(published(0))
