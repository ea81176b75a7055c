"""What repeats is thinned out, and nothing else."""

from __future__ import annotations

import logging

from slipstream.rpc.log_repeats import MOST, SECONDS, RepeatFilter


def record(level: int = logging.ERROR, line: int = 1) -> logging.LogRecord:
    return logging.LogRecord("a", level, "file.py", line, "failed %s", ("100%",), None)


def test_so_many_of_one_place_pass_and_the_next_ones_are_counted() -> None:
    now = [5.0]
    repeats = RepeatFilter(lambda: now[0])
    passed = [repeats.filter(record()) for _ in range(MOST + 7)]
    assert passed == [True] * MOST + [False] * 7
    assert repeats.filter(record(line=2))
    now[0] += SECONDS
    later = record()
    assert repeats.filter(later)
    assert later.getMessage() == "failed 100% (7 more like it were dropped)"
    again = record()
    assert repeats.filter(again)
    assert again.getMessage() == "failed 100%"


def test_lines_of_requests_and_the_last_words_of_a_process_all_pass() -> None:
    repeats = RepeatFilter(lambda: 0.0)
    for level in (logging.DEBUG, logging.INFO, logging.CRITICAL):
        assert all(repeats.filter(record(level)) for _ in range(2 * MOST))
