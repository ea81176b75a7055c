from __future__ import annotations

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from draft_service.proposers.eagle.base import EagleConfig
from draft_service.proposers.tree_expansion import Expansion, usual_rows
from slipstream_kernels.token_tree import TokenTree


def test_a_chain_follows_the_first_child() -> None:
    expansion = Expansion(width=1, budget=3, max_depth=3)
    for token in (7, 8, 9):
        assert len(expansion.frontier) == 1
        expansion.extend([[token]], [[-0.5]], [[-1.0]])
    assert not expansion.frontier
    assert expansion.tree() == TokenTree((7, 8, 9), (-1, 0, 1), (-1.0, -2.0, -3.0))


def test_the_best_nodes_of_all_levels_are_kept() -> None:
    expansion = Expansion(width=2, budget=3, max_depth=2)
    expansion.extend([[1, 2]], [[-0.1, -3.0]], [[-0.1, -3.0]])
    assert expansion.frontier == [0, 1]
    expansion.extend([[3, 4], [5, 6]], [[-0.2, -0.4], [-0.1, -9.0]], [[-0.2, -0.4], [-0.1, -9.0]])
    tree = expansion.tree()
    assert tree.token_ids == (1, 3, 4)
    assert tree.parents == (-1, 0, 0)


def test_nodes_that_cannot_be_kept_are_not_expanded() -> None:
    expansion = Expansion(width=2, budget=1, max_depth=3)
    expansion.extend([[1, 2]], [[-0.1, -0.2]], [[-0.1, -0.2]])
    assert expansion.frontier == [0]


@given(data=st.data(), width=st.integers(1, 4), budget=st.integers(1, 20), max_depth=st.integers(1, 6))
def test_kept_sets_are_closed_under_parents_and_the_best_possible(data, width, budget, max_depth) -> None:
    # Ties and zeros on purpose: these are what breaks closure.
    gain = st.sampled_from([0.0, -0.0, 1e-7, -1e-7, -0.5, -0.5, -1.0, -20.0])
    expansion = Expansion(width=width, budget=budget, max_depth=max_depth)
    tokens = count()
    scores: dict[tuple[int, ...], float] = {(): 0.0}
    while expansion.frontier:
        paths = [
            tuple(expansion.token(node) for node in expansion.path(node)) if node >= 0 else ()
            for node in expansion.frontier
        ]
        ids = [[next(tokens) for _ in range(width)] for _ in paths]
        gains = [[data.draw(gain) for _ in range(width)] for _ in paths]
        for path, row, row_gains in zip(paths, ids, gains, strict=True):
            for token, value in zip(row, row_gains, strict=True):
                scores[*path, token] = scores[path] + min(value, 0.0)
        expansion.extend(ids, gains, gains)
    tree = expansion.tree()
    tree.validate(vocab_size=10**6, max_nodes=budget, max_depth=max_depth)
    kept = {tuple(tree.token_ids[i] for i in tree.path(node)) for node in range(len(tree))}
    dropped = scores.keys() - kept - {()}
    assert len(kept) == min(budget, len(scores) - 1)
    assert not dropped or min(scores[path] for path in kept) >= max(scores[path] for path in dropped)


def test_the_usual_trees_have_room_for_their_longest_path() -> None:
    assert [usual_rows(depth, 1) for depth in (1, 5, 63)] == [2, 6, 64]
    assert [usual_rows(depth, 4) for depth in (1, 7, 10, 63)] == [8, 8, 11, 64]
    assert EagleConfig(max_depth=10).rows == 11
