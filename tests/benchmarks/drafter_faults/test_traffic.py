import pytest

from benchmarks.drafter_faults.traffic import COMPLETE, Traffic, about
from benchmarks.lib.runner import Answer


def answer(tokens, arrivals, finish_reason=COMPLETE):
    return Answer(tokens, finish_reason, 1, 0, 0, 0, 0.0, 0.0, arrivals=arrivals)


def test_pauses_are_those_between_messages_of_one_stream():
    traffic = Traffic([(0, answer((1, 2), (1.0, 1.5, 4.0))), (1, answer((3,), (1.1, 2.1)))])
    assert traffic.pauses == pytest.approx([0.5, 2.5, 1.0])
    found = [[pause.seconds for pause in about(traffic.by_begin(), moment)] for moment in (1.2, 3.0, 9.0)]
    assert found == [pytest.approx([0.5, 1.0]), [2.5], []]
    assert [pause.stream for pause in traffic.by_begin()] == [0, 1, 0]
    assert traffic.longest_within(0.0, 1.4) == pytest.approx(1.0)
    assert traffic.longest_within(4.5, 9.0) == 0.0


def test_answers_are_held_against_those_of_plain_decoding():
    answers = [(0, answer((1, 2), ())), (1, answer((9,), ())), (0, answer((1,), (), "FINISH_REASON_ERROR"))]
    compared = Traffic(answers, ["UNAVAILABLE"]).compare([(1, 2), (3,)])
    assert compared == {"answers": 3, "failed": 2, "failures": ["UNAVAILABLE"], "differing": 2}
