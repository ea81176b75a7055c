"""When a launch begins that waits for trees as long as it may."""

from __future__ import annotations

import pytest

from verify_service.engine.launch_deadline import LaunchDeadline


def test_nothing_is_known_before_a_step_and_a_launch_were_measured() -> None:
    times = LaunchDeadline()
    assert times.latest_start(0.0) is None
    times.observe_step(5e-3)
    assert times.latest_start(0.0) is None
    times.observe_launch(2e-4)
    assert times.latest_start(10.0) == pytest.approx(10.0 + 4.9e-3 - 1.5 * 4e-4)
    times.observe_whole_launch(1e-3)
    assert times.latest_start(10.0) == pytest.approx(10.0 + 4.9e-3 - 1.5e-3)
    times.observe_launch(2e-4)
    assert times.latest_start(10.0) == pytest.approx(10.0 + 4.9e-3 - 1.5 * 4e-4), "what was long ago is forgotten"


def test_a_few_slow_steps_and_launches_change_nothing_and_lasting_ones_all() -> None:
    times = LaunchDeadline()
    for step in range(32):
        times.observe_step(50e-3 if step % 5 == 0 else 5e-3)
        times.observe_whole_launch(8e-3 if step % 5 == 0 else 4e-4)
    assert times.latest_start(0.0) == pytest.approx(4.3e-3)
    for _ in range(16):
        times.observe_step(9e-3)
        times.observe_whole_launch(2e-3)
    assert times.latest_start(0.0) == pytest.approx(5.9e-3)
