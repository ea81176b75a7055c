"""Scaling in virtual time, second by second."""

from __future__ import annotations

from dataclasses import replace

import pytest

from launcher.cluster.autoscaler import Autoscaler, Load, Scaling

SCALING = Scaling(least=1, most=4, target_requests=10, upscale_delay=5, downscale_delay=20, look_back=4)


def run(scaler, seconds, current, load, begin=0):
    """The number wanted after each second."""
    history = []
    for second in range(begin, begin + seconds):
        current = scaler.wanted(float(second), current, [load(second, current)] * current)
        history.append(current)
    return history


def busy(requests, **more):
    """So many requests in all, shared by the replicas."""
    return lambda _, replicas: Load(running=requests // replicas, capacity=16, pages_total=100, pages_idle=90, **more)


def test_a_load_step_is_followed_up_after_its_delay_and_down_after_the_other():
    scaler = Autoscaler(SCALING)
    up = run(scaler, 12, 1, busy(25))
    assert up == [1] * 5 + [3] * 7
    down = run(scaler, 60, 3, busy(4), begin=12)
    assert set(down[:20]) == {3} and down[-1] == 1 and down == sorted(down, reverse=True)


def test_a_burst_shorter_than_the_delay_starts_nothing_and_a_lull_stops_nothing():
    scaling = replace(SCALING, look_back=0)
    scaler = Autoscaler(scaling)
    wave = busy(60), busy(0)
    assert set(run(scaler, 40, 1, lambda second, n: wave[second % 8 >= 4](second, n))) == {1}
    scaler = Autoscaler(scaling)
    assert set(run(scaler, 100, 2, lambda second, n: busy(18 if second % 16 < 8 else 4)(second, n))) == {2}


@pytest.mark.parametrize("more", [{"queued": 2}, {"oldest_wait": 6.0}])
def test_what_waits_asks_for_one_more_however_few_there_are(more):
    assert run(Autoscaler(SCALING), 7, 1, busy(2, **more))[-1] == 2


def test_few_free_pages_ask_for_one_more():
    load = Load(running=2, capacity=16, pages_total=100, pages_idle=3)
    assert run(Autoscaler(SCALING), 7, 1, lambda *_: load)[-1] == 2


def test_requests_that_hold_the_pages_of_two_keep_two():
    load = Load(running=1, capacity=16, pages_total=100, pages_idle=50)
    assert set(run(Autoscaler(SCALING), 60, 2, lambda *_: load)) == {2}


def test_bounds_hold_and_equal_bounds_scale_nothing():
    assert max(run(Autoscaler(SCALING), 60, 1, busy(500))) == 4
    assert set(run(Autoscaler(Scaling(2, 2)), 100, 1, busy(500))) == {2}
    with pytest.raises(ValueError, match="3 to 2"):
        Scaling(3, 2)


def test_without_a_target_a_replica_is_full_at_most_of_what_it_decodes_together():
    scaling = Scaling(1, 4, upscale_delay=0, look_back=0)
    assert Autoscaler(scaling).wanted(0.0, 1, [Load(running=12, capacity=16)]) == 2
    assert Autoscaler(scaling).wanted(0.0, 1, [Load(running=11, capacity=16)]) == 1
