"""How many trees ahead are made follows what has come true."""

from __future__ import annotations

from draft_service.worker.fan_out import EXPLORE_EVERY, FanOut


def widths(fan_out: FanOut, steps: int) -> list[int]:
    return [fan_out.next() for _ in range(steps)]


def test_all_ranks_get_trees_until_some_prove_worthless() -> None:
    fan_out = FanOut(6)
    assert widths(fan_out, 3) == [6, 6, 6]
    for step in range(120):
        fan_out.observe(6, None if step % 4 == 0 else step % 2)
    assert fan_out.worth == 2
    for _ in range(200):
        fan_out.observe(2, None)
    assert fan_out.worth == 1, "one tree is always made"


def test_what_is_seldom_right_is_found_again() -> None:
    fan_out = FanOut(4)
    for _ in range(120):
        fan_out.observe(4, 0)
    assert sorted(widths(fan_out, EXPLORE_EVERY)) == [1] * (EXPLORE_EVERY - 1) + [4]
    fan_out.observe(4, 3)
    assert fan_out.worth == 4
    for _ in range(120):
        fan_out.observe(1, 0)
    assert fan_out.worth == 4, "ranks without trees are not judged"
