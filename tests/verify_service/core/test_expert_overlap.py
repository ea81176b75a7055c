from __future__ import annotations

import random

import numpy as np
import pytest

from slipstream_kernels.models.checkpoint.expert_form import ExpertForm
from slipstream_kernels.token_tree import TokenTree
from verify_service.core.expert_overlap import ExpertOverlap

FORM = ExpertForm(64, 4, 128, (True, False, True), normalised=True)


def tree(*parents: int) -> TokenTree:
    return TokenTree(tuple(range(len(parents))), parents)


def woken(known: ExpertOverlap, rows: float) -> int:
    return round(known.independent(rows))


def test_independent_rows() -> None:
    known = ExpertOverlap(FORM)
    assert known.independent(1) == pytest.approx(2 * 4)
    assert known.independent(2) == pytest.approx(2 * 64 * (1 - (60 / 64) ** 2))
    assert known.independent(1000) == pytest.approx(2 * 64)
    all_of_them = ExpertOverlap(ExpertForm(4, 4, 128, (True,), normalised=True))
    assert all_of_them.independent(1) == 4
    assert all_of_them.observe(2, 1, [tree(-1)], 4) == 1


def test_counts_are_of_steps_by_kind() -> None:
    known = ExpertOverlap(FORM)
    known.observe(2, 0, [], 15)
    known.observe(2, 0, [], 14)
    known.observe(1, 3, [tree(-1, 0, 0)], 20)
    plain, drafted = known.counts["plain"], known.counts["drafted"]
    assert (plain.rows, plain.awake, drafted.rows, drafted.awake) == (4, 29, 4, 20)
    assert plain.independent == pytest.approx(2 * known.independent(2))
    assert drafted.independent == pytest.approx(known.independent(4))


def test_rows_that_share_nothing_count_as_themselves() -> None:
    known = ExpertOverlap(FORM)
    for _ in range(50):
        assert known.observe(1, 3, [tree(-1, -1, 0)], woken(known, 4)) == pytest.approx(3, abs=0.1)
    assert (known.child, known.sibling) == pytest.approx((1, 1), abs=0.1)


def test_children_and_siblings_are_told_apart() -> None:
    known, draw = ExpertOverlap(FORM), random.Random(0)
    for _ in range(400):
        requests = draw.choice((1, 2, 3))
        trees = [draw.choice((tree(-1, 0), tree(-1, -1, 0), tree(-1, -1, -1), tree(-1))) for _ in range(requests)]
        children = sum(len(set(each.parents)) for each in trees)
        nodes = sum(len(each) for each in trees)
        rows = 1 + 0.8 * (requests - 1) + 0.5 * children + 0.2 * (nodes - children)
        counted = known.observe(requests, nodes, trees, woken(known, rows))
    assert (known.child, known.sibling) == pytest.approx((0.5, 0.2), abs=0.1)
    assert counted == pytest.approx(0.5 * children + 0.2 * (nodes - children), abs=0.5)
    assert known.of_level(0.5) == pytest.approx(0.5 * known.child)
    assert known.of_level(3) == pytest.approx(known.child + 2 * known.sibling)


def test_where_nearly_all_are_awake_or_trees_are_not_known_nothing_is_learnt() -> None:
    known = ExpertOverlap(FORM)
    known.observe(40, 40, [tree(-1)] * 40, 127)
    known.observe(1, 3, [], woken(known, 2))  # of trees that nobody told of
    known.observe(1, 3, [tree(-1, -1, 0)], 0)  # of an engine that counts none
    assert (known.child, known.sibling) == (1, 1)
    assert known.observe(1, 3, [], 0) == 3


def test_of_siblings_the_likeliest_is_the_child() -> None:
    known = ExpertOverlap(FORM)
    known.child, known.sibling = 0.5, 0.25
    trees = [tree(-1, -1, 0, 0), tree(-1, 0, -1)]
    order = np.array([1, 4, 0, 5, 3, 2, 6])  # the second root's child first; node 3 in front of node 2
    assert known.of_nodes(trees, order).tolist() == [0.5, 0.5, 0.25, 0.5, 0.5, 0.25, 0.25]
    assert known.of_nodes([], np.zeros(0, np.int64)).tolist() == []
