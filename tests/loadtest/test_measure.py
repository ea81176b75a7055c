from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from loadtest.measure import Answer, percentile, summarise


def test_times_of_one_answer():
    answer = Answer(started=10.0, first_token=10.5, last_token=12.5, tokens=5)
    assert answer.ttft == 0.5
    assert answer.tpot == 0.5
    assert Answer(0.0, 1.0, 1.0, 1).tpot is None


def test_a_level_counts_from_first_request_to_last_token():
    answers = [Answer(0.0, 1.0, 2.0, 11, 4), Answer(1.0, 1.5, 4.0, 9, 6)]
    level = summarise("http", 2, answers, failures=1)
    assert (level.seconds, level.tokens_per_second, level.requests_per_second) == (4.0, 5.0, 0.5)
    assert (level.answers, level.failures, level.tokens_per_step) == (2, 1, 2.0)
    assert level.ttft_p50_ms == 750.0


def test_a_level_without_answers_has_no_numbers():
    level = summarise("grpc", 1, [], failures=3)
    assert math.isnan(level.ttft_p50_ms)
    assert math.isnan(level.tokens_per_second)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.integers(1, 99))
def test_percentiles_lie_within_the_values(values, percent):
    slack = 1e-9 * max(values)
    assert min(values) - slack <= percentile(values, percent) <= max(values) + slack
