from math import exp

import pytest

from benchmarks.speculation.acceptance_profile import RANKS, OraclePlan, Profile, best_shape, placed
from slipstream_kernels.token_tree import TokenTree

PROFILE = Profile(0.7)
DECOYS = tuple(range(900, 964))


def test_chances_fall_and_leave_something_for_other_tokens():
    chances = PROFILE.chances
    assert chances[:3] == (0.7, pytest.approx(0.1), pytest.approx(0.05))
    assert list(chances) == sorted(chances, reverse=True)
    assert sum(chances) == pytest.approx(0.9, abs=1e-4)


def test_ranks_come_as_often_as_the_chances_say_and_depend_on_the_text_alone():
    ranks = PROFILE.ranks("a text", 20_000)
    assert ranks.count(0) / 20_000 == pytest.approx(0.7, abs=0.02)
    assert ranks.count(1) / 20_000 == pytest.approx(0.1, abs=0.02)
    assert ranks.count(RANKS) / 20_000 == pytest.approx(0.1, abs=0.02)
    assert PROFILE.ranks("a text", 50) == ranks[:50]
    assert PROFILE.ranks("another", 50) != ranks[:50]


def test_a_chain_is_one_path():
    chain = best_shape(PROFILE, nodes=5, depth=5, width=1)
    assert chain.parents == (-1, 0, 1, 2, 3)
    assert chain.expected_length == pytest.approx(sum(0.7**level for level in range(6)))


@pytest.mark.parametrize(("nodes", "depth", "width"), [(63, 5, 8), (7, 3, 2), (15, 1, 16)])
def test_trees_hold_the_likeliest_nodes_level_by_level(nodes, depth, width):
    shape = best_shape(PROFILE, nodes=nodes, depth=depth, width=width)
    tree = TokenTree(DECOYS[:nodes], shape.parents, shape.log_probs)
    assert len(tree) == nodes
    tree.validate(vocab_size=1000, max_nodes=nodes, max_depth=depth)
    assert list(tree.depths) == sorted(tree.depths)
    every = sorted(_all_scores(PROFILE.chances[:width], depth), reverse=True)
    assert sorted(map(exp, shape.log_probs), reverse=True) == pytest.approx(every[:nodes])


def _all_scores(chances, depth, score=1.0):
    for chance in chances:
        yield score * chance
        if depth > 1:
            yield from _all_scores(chances, depth - 1, score * chance)


def test_trees_smaller_than_asked_for_are_whole():
    assert len(best_shape(PROFILE, nodes=63, depth=2, width=3).parents) == 3 + 9


def test_the_truth_stands_where_the_ranks_say_and_nowhere_else():
    shape = best_shape(PROFILE, nodes=20, depth=4, width=4)
    truth = [5, 6, 7, 8]
    for ranks, right in (([0, 1, 0, RANKS], 3), ([0, 0, 0, 0], 4), ([RANKS, 0, 0, 0], 0), ([1, 0, 3, 0], 2)):
        tokens = placed(shape, DECOYS, truth, ranks)
        found, accepted = TokenTree(tokens, shape.parents).walk(5, [_next(truth, level) for level in _depths(shape)])
        assert len(found) == right, ranks
        assert list(accepted) == [5, 6, 7, 8, 9][: right + 1]


def _next(truth, level):
    return truth[level] if level < len(truth) else 9


def _depths(shape):
    return TokenTree(DECOYS[: len(shape.parents)], shape.parents).depths


def test_a_decoy_that_happens_to_be_true_is_replaced():
    shape = best_shape(PROFILE, nodes=6, depth=2, width=3)
    node = shape.children[-1][2]
    tokens = placed(shape, DECOYS, [DECOYS[node], 7], [0, 0])
    assert tokens.count(DECOYS[node]) == 1
    assert tokens[shape.children[-1][0]] == DECOYS[node]
    assert tokens[node] == DECOYS[6]
    wrong = placed(shape, DECOYS, [DECOYS[node]], [RANKS])
    assert DECOYS[node] not in wrong


def test_plans_survive_their_file(tmp_path):
    plan = OraclePlan(0.75, "/some/file")
    plan.write(tmp_path / "plan.json")
    assert OraclePlan.read(tmp_path / "plan.json") == plan
