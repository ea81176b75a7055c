"""Rates between two looks at the loop's counters."""

from __future__ import annotations

from dataclasses import replace

from verify_service.engine.loop_stats import LoopState
from verify_service.server.stats_log import StatsLog
from verify_service.speculation.forecast import Forecast

IDLE = LoopState(0, 0, 100, 90, 10, 5, 50, 20, 10, 0, 40, False, prompt_tokens=300, verify_steps=40)


def test_rates_are_those_since_the_last_look() -> None:
    states, times = [IDLE], [100.0]
    log = StatsLog(lambda: states[-1], lambda: times[-1])
    times.append(110.0)
    assert log.line() == ""
    states.append(
        replace(IDLE, running=3, queued=2, pages_free=40, pages_cached=10, steps=15, committed_tokens=350,
                drafted_tokens=420, accepted_tokens=210, prefix_hit_tokens=140, prompt_tokens=600, verify_steps=160)
    )  # fmt: skip
    times.append(120.0)
    assert log.line() == (
        "prompt 30.0 tokens/s, generated 30.0 tokens/s, running 3, waiting 2, KV cache 50.0%, prefix cache hits 25.0%, "
        "acceptance length 2.50, accepted 50.0% of 40.0 drafted tokens/s"
    )


def test_what_trees_promise_is_that_of_the_steps_since() -> None:
    states = [replace(IDLE, forecast=Forecast(10, 10, 100.0, 1.0, 10.0, 1.0))]
    log = StatsLog(lambda: states[-1], lambda: 0.0)
    states.append(replace(states[0], steps=15, forecast=Forecast(30, 15, 150.0, 3.0, 30.0, 2.6)))
    assert log.line().endswith(", KV cache 0.0%, trees to make it 2.00 x as fast")
    states.append(replace(states[1], steps=25, forecast=Forecast(40, 15, 160.0, 4.0, 40.0, 3.6)))
    assert "trees" not in log.line(), "none was to pay"


def test_requests_that_get_nowhere_are_told_and_silence_follows_the_last_one() -> None:
    states, times = [IDLE], [0.0]
    log = StatsLog(lambda: states[-1], lambda: times[-1])
    states.append(replace(IDLE, running=1))
    times.append(10.0)
    assert log.line() == "prompt 0.0 tokens/s, generated 0.0 tokens/s, running 1, waiting 0, KV cache 0.0%"
    states.append(replace(IDLE, steps=6))
    assert log.line()
    assert log.line() == ""
