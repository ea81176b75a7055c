from __future__ import annotations

from benchmarks.routing.__main__ import POLICIES, in_turn


def test_each_policy_has_each_place_in_the_order_equally_often():
    orders = [in_turn(round_) for round_ in range(len(POLICIES))]
    assert all(sorted(order) == sorted(POLICIES) for order in orders)
    assert all(sorted(place) == sorted(POLICIES) for place in zip(*orders, strict=True))
