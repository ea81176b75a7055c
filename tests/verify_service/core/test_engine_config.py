"""Sizes out of range are refused by name."""

from __future__ import annotations

import pytest

from verify_service.core.engine_config import EngineConfig, default_num_pages


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_pages", 0),
        ("page_size", 0),
        ("page_size", 65),
        ("max_running", 0),
        ("max_queued", -1),
        ("max_nodes", 0),
        ("max_nodes", 65),
        ("step_nodes", -1),
        ("prefill_chunk", 0),
    ],
)
def test_out_of_range(field: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{field} is {value}, must be from"):
        EngineConfig(**({"num_pages": 8} | {field: value}))


def test_default_pages_hold_eight_full_contexts() -> None:
    assert default_num_pages(4096, 16) == 2048
    assert default_num_pages(100, 64) == 16
