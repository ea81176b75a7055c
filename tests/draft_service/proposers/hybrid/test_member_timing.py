from __future__ import annotations

from math import inf

from draft_service.proposers.hybrid.member_timing import MemberTimer

MEMBERS = ("good", "slow", "quick")
SECONDS = {"good": 0.005, "slow": 0.014, "quick": 0.0002}
RIGHT = {"good": 2, "slow": 1, "quick": 1}


def experienced(rounds: int = 100, requests: int = 8) -> MemberTimer:
    pace = MemberTimer()
    for _ in range(rounds):
        for member in MEMBERS:
            pace.drafted(member, requests, SECONDS[member])
            pace.proved(member, RIGHT[member])
    return pace


def test_all_are_asked_where_there_is_time_or_nothing_is_known() -> None:
    for seconds in (inf, 0.03):
        assert experienced().choose(MEMBERS, 8, seconds) == list(MEMBERS)
    assert MemberTimer().choose(MEMBERS, 8, 0.001) == list(MEMBERS)
    assert MemberTimer().choose([], 8, 0.001) == []


def test_those_that_bring_most_go_first() -> None:
    assert experienced().choose(MEMBERS, 8, 0.02) == ["good", "quick"]
    pace = experienced()
    for _ in range(200):
        pace.proved("slow", 3)
    assert pace.choose(MEMBERS, 8, 0.02) == ["slow", "quick"]
    assert pace.choose(MEMBERS, 8, 0.01) == ["good", "quick"], "it would be late all alone"


def test_somebody_is_asked_however_short_the_time() -> None:
    assert experienced().choose(MEMBERS, 8, 0.0) == ["quick"]


def test_a_share_of_the_time_is_left_for_the_way() -> None:
    pace = MemberTimer()
    for _ in range(100):
        pace.drafted("good", 8, 0.009)
        pace.drafted("quick", 8, 0.001)
    assert pace.choose(("good", "quick"), 8, 0.0101) != ["good", "quick"]
    assert pace.choose(("good", "quick"), 8, 0.015) == ["good", "quick"]


def test_calls_that_made_no_tree_tell_nothing_of_the_time() -> None:
    pace = experienced()
    for _ in range(100):
        pace.drafted("slow", 0, 0.0)
    assert "slow" not in pace.choose(MEMBERS, 8, 0.02)
    assert "slow" not in pace.choose(MEMBERS, 1, 0.002)


def test_few_requests_take_less_than_many() -> None:
    pace = experienced()
    assert pace.choose(MEMBERS, 1, 0.02) == list(MEMBERS), "as long as nothing else is known"
    for _ in range(100):
        pace.drafted("slow", 1, 0.013)
    assert pace.choose(MEMBERS, 1, 0.013) == ["good", "quick"]


def test_one_that_varies_is_given_more_time() -> None:
    pace = experienced()
    for seconds in (0.001, 0.009) * 50:
        pace.drafted("good", 8, seconds)
    assert "good" not in pace.choose(MEMBERS, 8, 0.012)
    assert "good" in experienced().choose(MEMBERS, 8, 0.012)


def test_one_that_is_left_out_is_tried_again_now_and_then() -> None:
    pace = experienced()
    asked = 0
    for _ in range(1000):
        if "slow" in pace.choose(MEMBERS, 8, 0.02):
            asked += 1
            pace.drafted("slow", 8, SECONDS["slow"])
    assert 5 <= asked <= 50
