from __future__ import annotations

from math import inf

from draft_service.proposers.hybrid.member_timing import MemberTimer

MEMBERS = ("good", "slow", "quick")
SECONDS = {"good": 0.005, "slow": 0.014, "quick": 0.0002}
RIGHT = {"good": 2, "slow": 1, "quick": 1}


def experienced(rounds: int = 100, requests: int = 8) -> MemberTimer:
    timer = MemberTimer()
    for _ in range(rounds):
        for member in MEMBERS:
            timer.record_call(member, requests, SECONDS[member])
            timer.record_accepted(member, RIGHT[member])
    return timer


def test_all_are_asked_where_there_is_time_or_nothing_is_known() -> None:
    for seconds in (inf, 0.03):
        assert experienced().choose(MEMBERS, 8, seconds) == list(MEMBERS)
    assert MemberTimer().choose(MEMBERS, 8, 0.001) == list(MEMBERS)
    assert MemberTimer().choose([], 8, 0.001) == []


def test_those_that_bring_most_go_first() -> None:
    assert experienced().choose(MEMBERS, 8, 0.02) == ["good", "quick"]
    timer = experienced()
    for _ in range(200):
        timer.record_accepted("slow", 3)
    assert timer.choose(MEMBERS, 8, 0.02) == ["slow", "quick"]
    assert timer.choose(MEMBERS, 8, 0.01) == ["good", "quick"], "it would be late all alone"


def test_somebody_is_asked_however_short_the_time() -> None:
    assert experienced().choose(MEMBERS, 8, 0.0) == ["quick"]


def test_a_share_of_the_time_is_left_for_the_way() -> None:
    timer = MemberTimer()
    for _ in range(100):
        timer.record_call("good", 8, 0.009)
        timer.record_call("quick", 8, 0.001)
    assert timer.choose(("good", "quick"), 8, 0.0101) != ["good", "quick"]
    assert timer.choose(("good", "quick"), 8, 0.015) == ["good", "quick"]


def test_calls_that_made_no_tree_tell_nothing_of_the_time() -> None:
    timer = experienced()
    for _ in range(100):
        timer.record_call("slow", 0, 0.0)
    assert "slow" not in timer.choose(MEMBERS, 8, 0.02)
    assert "slow" not in timer.choose(MEMBERS, 1, 0.002)


def test_few_requests_take_less_than_many() -> None:
    timer = experienced()
    assert timer.choose(MEMBERS, 1, 0.02) == list(MEMBERS), "as long as nothing else is known"
    for _ in range(100):
        timer.record_call("slow", 1, 0.013)
    assert timer.choose(MEMBERS, 1, 0.013) == ["good", "quick"]


def test_one_that_varies_is_given_more_time() -> None:
    timer = experienced()
    for seconds in (0.001, 0.009) * 50:
        timer.record_call("good", 8, seconds)
    assert "good" not in timer.choose(MEMBERS, 8, 0.012)
    assert "good" in experienced().choose(MEMBERS, 8, 0.012)


def test_one_that_is_left_out_is_tried_again_now_and_then() -> None:
    timer = experienced()
    asked = 0
    for _ in range(1000):
        if "slow" in timer.choose(MEMBERS, 8, 0.02):
            asked += 1
            timer.record_call("slow", 8, SECONDS["slow"])
    assert 5 <= asked <= 50
