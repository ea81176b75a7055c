"""The nodes of all requests compete for the rows of a step."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from slipstream_kernels.models.checkpoint.expert_form import ExpertForm
from slipstream_kernels.token_tree import TokenTree
from verify_service.core.step_time_model import StepTimeModel
from verify_service.speculation.acceptance_model import AcceptanceModel, ProposedTree
from verify_service.speculation.node_selection import EXPLORE_EVERY, NodeSelector

FLAT = [(1, 1, 1.0e-3), (1, 64, 1.01e-3)]
LINEAR = [(1, 1, 1.0e-3), (1, 64, 64.0e-3)]
STAIRS = [(1, 1, 1.0e-3), (1, 8, 1.1e-3), (1, 9, 2.0e-3), (1, 16, 2.1e-3), (1, 17, 3.0e-3)]
KIND = ("draft-model", False)


def chain(*claims: float) -> ProposedTree:
    """A path whose nodes have these probabilities, each given its parent."""
    logs, path = [], 0.0
    for claim in claims:
        path += math.log(claim)
        logs.append(path)
    return ProposedTree(KIND, TokenTree(tuple(range(len(claims))), tuple(range(-1, len(claims) - 1)), tuple(logs)))


def selector(costs: StepTimeModel) -> NodeSelector:
    return NodeSelector(costs, AcceptanceModel())


def sizes(costs: list[tuple[int, int, float]], trees: list[ProposedTree], *, waited: float = 0.0) -> list[int]:
    chosen = selector(StepTimeModel(costs)).choose(
        trees, requests=len(trees), rows=len(trees), tokens=len(trees), waited=waited
    )
    return [0 if tree is None else len(tree) for tree in chosen]


def test_rows_that_cost_nothing_are_all_taken() -> None:
    assert sizes(FLAT, [chain(*[0.05] * 20)]) == [20]


def test_rows_as_dear_as_a_step_are_not_taken() -> None:
    assert sizes(LINEAR, [chain(*[0.9] * 20)]) == [0]


def test_a_wait_that_has_been_paid_for_makes_nodes_worth_more() -> None:
    tree = chain(*[0.9] * 8)
    assert sizes(LINEAR, [tree], waited=20e-3) > sizes(LINEAR, [tree], waited=1e-3)


def test_the_likelier_nodes_of_all_requests_fill_what_is_cheap() -> None:
    good, poor = sizes(STAIRS, [chain(*[0.95] * 10), chain(*[0.35] * 10)])
    assert good + poor == 6
    assert good > poor


def test_rows_of_more_requests_are_dearer_and_fewer_of_them_are_taken() -> None:
    costs = [*LINEAR[:1], (1, 64, 1.1e-3), (8, 8, 1.2e-3), (8, 64, 8e-3)]
    alone, beside_others = (
        selector(StepTimeModel(costs)).choose(
            [chain(*[0.5] * 8)], requests=requests, rows=9, tokens=requests, waited=0.0
        )
        for requests in (1, 8)
    )
    assert alone == [chain(*[0.5] * 8).tree]
    assert beside_others == [None]


def test_what_is_learned_moves_the_choice() -> None:
    acceptance = AcceptanceModel()
    choice = NodeSelector(StepTimeModel(STAIRS), acceptance)
    tree = chain(*[0.35] * 6)
    for _ in range(100):
        acceptance.observe([(tree, range(6))])
    (chosen,) = choice.choose([chain(*[0.35] * 12)], requests=1, rows=1, tokens=1, waited=0.0)
    assert chosen is not None
    assert len(chosen) == 7


def test_now_and_then_everything_is_tried() -> None:
    choice = selector(StepTimeModel(LINEAR))
    tree = chain(*[0.3] * 5)
    taken = [choice.choose([tree], requests=1, rows=1, tokens=1, waited=0.0) for _ in range(2 * EXPLORE_EVERY)]
    assert [step for step, chosen in enumerate(taken, start=1) if chosen != [None]] == [64, 128]
    assert taken[EXPLORE_EVERY - 1] == [tree.tree]


@given(
    claims=st.lists(st.lists(st.floats(0.01, 0.99), min_size=1, max_size=20), min_size=1, max_size=6),
    steep=st.floats(1.0, 60.0),
)
def test_every_part_is_a_prefix_of_its_path_and_no_other_sum_of_the_likeliest_yields_more(
    claims: list[list[float]], steep: float
) -> None:
    costs = StepTimeModel([(1, 1, 1e-3), (1, 64, steep * 1e-3)])
    acceptance = AcceptanceModel()
    choice = NodeSelector(costs, acceptance)
    trees = [chain(*each) for each in claims]
    chosen = choice.choose(trees, requests=len(trees), rows=len(trees), tokens=len(trees), waited=1e-4)
    lengths = [0 if tree is None else len(tree) for tree in chosen]
    for drafted, tree, length in zip(trees, chosen, lengths, strict=True):
        assert tree is None or tree == drafted.tree.truncated(length, 63)
    total = sum(len(drafted.tree) for drafted in trees)
    if costs.seconds(len(trees), total) < 1.02 * costs.seconds(len(trees)):
        assert lengths == [len(drafted.tree) for drafted in trees]
        return
    chances = sorted(acceptance.path_probs(trees), reverse=True)

    def rate(nodes: int) -> float:
        return float(len(trees) + sum(chances[:nodes])) / (1e-4 + costs.seconds(len(trees), nodes))

    assert rate(sum(lengths)) >= max(map(rate, range(total + 1))) - 1e-6


def test_of_a_mixture_nodes_count_as_the_experts_that_they_wake() -> None:
    """Where children wake what their parents have, a chain is worth more rows than it is where they do not."""
    costs = StepTimeModel([(1, 1, 1.0e-3), (1, 16, 4.0e-3), (1, 64, 8.0e-3)], ExpertForm(64, 4, 64, (True,), True))
    choice, tree = selector(costs), chain(*[0.7] * 8)

    def size() -> int:
        (taken,) = choice.choose([tree], requests=1, rows=1, tokens=1, waited=0)
        return 0 if taken is None else len(taken)

    independent = size()
    assert costs.experts is not None
    for _ in range(100):
        costs.experts.observe(1, 4, [TokenTree((1, 2, 3, 4), (-1, 0, 1, 2))], round(costs.experts.independent(2)))
    assert costs.experts.child < 0.4
    assert size() > independent
