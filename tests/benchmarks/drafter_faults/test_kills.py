import time
from dataclasses import replace

import pytest

from benchmarks.drafter_faults.kills import Kill, Moment, line_of
from benchmarks.drafter_faults.services import LogLine
from benchmarks.drafter_faults.traffic import Pause

STREAMS = 4
STEP = 0.005
BEFORE = Moment(99.99, steps=10, waits=3, misses=5, throttled_ms=1.0, starved_ms=20.0)
OVER = Moment(100.04, steps=13, waits=4, misses=69, throttled_ms=8.5, starved_ms=20.0)


KILL = Kill(100.0, 5000.0, 64, 3, BEFORE, OVER)


def pauses(*spans):
    """Each span a pause of every stream, whose streams follow one another within half a millisecond."""
    shifted = [
        (begin + 1e-4 * stream, end + 1e-4 * stream, stream) for begin, end in spans for stream in range(STREAMS)
    ]
    return sorted(Pause(*each) for each in shifted)


def facts(found, log=()):
    return KILL.facts(found, STEP, log)


def test_a_kill_tells_its_pause_and_where_the_longest_one_lies():
    found = facts(pauses((99.99, 99.995), (99.995, 100.015), (100.015, 100.02), (100.02, 100.06), (103.0, 104.0)))
    assert found["pause"] == {"streams": 4, "ms": 20.0, "from_ms": pytest.approx(-4.9, 0.05), "to_ms": 15.2}
    assert found["added_ms"] == pytest.approx(15.0)
    assert (found["longest"]["ms"], found["longest"]["from_ms"]) == (40.0, 20.2)
    assert (found["drafted_for"], found["stood_by"]) == (64, 3)


def test_a_pause_of_one_stream_alone_is_not_the_longest_of_most():
    lonely = Pause(100.1, 101.0, 2)
    assert facts(sorted([*pauses((99.995, 100.015)), lonely]))["longest"]["ms"] == 20.0


def test_what_it_took_until_the_attachment_was_over_is_counted():
    over = facts(pauses((99.9, 100.1)))["until_its_attachment_was_over"]
    assert facts(pauses((99.9, 100.1)))["until_trees_were_accepted_again"] is None
    assert over == {"ms": 50.0, "steps": 3, "waits": 1, "trees_missed": 64, "throttled_ms": 7.5, "starved_ms": 0.0}


def test_what_it_took_until_another_one_drafts_is_counted_from_there():
    again = Moment(100.34, steps=43, waits=6, misses=71, throttled_ms=8.5, starved_ms=20.0)
    found = replace(KILL, again=again).facts([], STEP, ())
    assert (found["until_trees_were_accepted_again"]["steps"], found["until_trees_were_accepted_again"]["waits"]) == (
        30,
        2,
    )
    assert "then 300.0 ms, 2 waits, 2 trees missed" in line_of(0, found)


def test_the_logs_about_it_are_kept_with_their_milliseconds():
    lines = [LogLine(wall, f"verify: {wall}") for wall in (4999.0, 4999.95, 5000.25, 5001.0)]
    assert facts(pauses((99.9, 100.1)), lines)["log"] == ["-50 verify: 4999.95", "+250 verify: 5000.25"]


def test_a_kill_that_hit_no_stream_is_told_in_a_line_too():
    assert "added 0.0 ms, 64 requests" in line_of(7, facts([]))
    assert "longest 200.0 ms of 4 streams at -99.8 to +100.1" in line_of(0, facts(pauses((99.9, 100.1))))


def test_a_line_of_a_log_has_its_time_and_its_service():
    said = "2026-11-22 05:06:07.250 INFO    verify: detached epoch 3"
    at = time.mktime(time.strptime("2026-11-22 05:06:07", "%Y-%m-%d %H:%M:%S")) + 0.25
    assert LogLine.of(f"verify: {said}") == LogLine(at, "verify: INFO    verify: detached epoch 3")
    assert LogLine.of("verify: Traceback (most recent call last):") is None
