from __future__ import annotations

from slipstream_kernels.stage_times import StageTimes


def test_stages_follow_one_another() -> None:
    now = iter((3.0, 4.5, 5.0, 9.0)).__next__
    times = StageTimes(1.0, now)
    for stage in ("imports", "weights", "imports", "graphs"):
        times.end(stage)
    assert str(times) == "imports 2.5, weights 1.5, graphs 4.0"
    assert times.total == 8.0


def test_the_first_stage_begins_now_unless_it_is_said() -> None:
    times = StageTimes(clock=iter((2.0, 2.5)).__next__)
    times.end("imports")
    assert times.total == 0.5
