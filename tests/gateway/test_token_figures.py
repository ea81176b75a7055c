"""Times between tokens, and what is counted once a step."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from gateway.token_figures import TokenFigures, TokenTimes
from slipstream.generation_types import SpeculationStep


def test_times_are_between_outputs_and_between_tokens() -> None:
    times = TokenTimes()
    assert times.per_token(0) is None
    assert times.arrive(10.0) is None
    assert times.per_token(1) is None
    assert [times.arrive(10.5), times.arrive(12.0)] == [0.5, 1.5]
    assert times.per_token(9) == pytest.approx(0.25)


def test_outputs_are_counted() -> None:
    registry, figures = CollectorRegistry(), TokenFigures()
    registry.register(figures)
    figures.count(1, SpeculationStep(0, 0, ""), None)
    figures.count(3, SpeculationStep(4, 2, "ngram"), 0.02)
    figures.count(2, SpeculationStep(4, 1, "ngram"), 0.04)
    figures.count(0, None, None)
    names = ("completion_tokens", "verify_steps", "drafts", "drafted_tokens", "accepted_tokens")
    assert [registry.get_sample_value(f"slipstream_gateway_{name}_total") for name in names] == [6, 3, 2, 8, 3]
    positions = [
        registry.get_sample_value("slipstream_gateway_accepted_tokens_per_position_total", {"position": position})
        for position in "012"
    ]
    assert positions == [2, 1, None]
    assert registry.get_sample_value("slipstream_gateway_inter_token_seconds_count") == 2
    assert registry.get_sample_value("slipstream_gateway_inter_token_seconds_sum") == pytest.approx(0.06)
    assert registry.get_sample_value("slipstream_gateway_inter_token_seconds_bucket", {"le": "0.02"}) == 1
