"""Times between tokens, and what is counted once a step."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from gateway.token_figures import TokenFigures, TokenTimes
from slipstream.generation_types import SpeculationStep


def test_times_are_between_outputs_and_between_tokens() -> None:
    times, figures = TokenTimes(), TokenFigures()
    registry = CollectorRegistry()
    registry.register(figures)
    assert times.per_token(0) is None
    figures.count(1, None, times, 10.0)
    assert times.per_token(1) is None
    for now, tokens in ((10.5, 4), (11.0, 0), (12.0, 4)):
        figures.count(tokens, None, times, now)
    assert registry.get_sample_value("slipstream_gateway_inter_token_seconds_sum") == pytest.approx(0.5 + 1.5)
    assert times.per_token(9) == pytest.approx(0.25)


def test_outputs_are_counted() -> None:
    registry, figures = CollectorRegistry(), TokenFigures()
    registry.register(figures)
    times = TokenTimes()
    figures.count(1, SpeculationStep(0, 0, ""), times, 1.0)
    figures.count(3, SpeculationStep(4, 2, "ngram"), times, 1.02)
    figures.count(2, SpeculationStep(4, 1, "ngram"), times, 1.06)
    figures.count(0, None, times, 2.0)
    names = ("completion_tokens", "verify_steps", "drafts", "drafted_tokens", "accepted_tokens")
    assert [registry.get_sample_value(f"slipstream_gateway_{name}_total") for name in names] == [6, 3, 2, 8, 3]
    positions = [
        registry.get_sample_value("slipstream_gateway_accepted_tokens_per_position_total", {"position": position})
        for position in "012"
    ]
    assert positions == [2, 1, None]
    assert registry.get_sample_value("slipstream_gateway_inter_token_seconds_count") == 2
    assert registry.get_sample_value("slipstream_gateway_inter_token_seconds_sum") == pytest.approx(0.06)
    assert registry.get_sample_value("slipstream_gateway_inter_token_seconds_bucket", {"le": "0.03"}) == 1
