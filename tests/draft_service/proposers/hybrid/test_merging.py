from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draft_service.proposers.hybrid.merging import MergedDraft, accept_length_class
from slipstream_kernels.calibration import Calibration
from slipstream_kernels.token_tree import TokenTree


@st.composite
def trees(draw) -> TokenTree:
    size = draw(st.integers(1, 12))
    parents = tuple(draw(st.integers(-1, i - 1)) for i in range(size))
    tokens = tuple(draw(st.integers(0, 3)) for _ in range(size))
    log_probs = None
    if draw(st.booleans()):
        shares = [draw(st.floats(-3, 0.1)) for _ in range(size)]
        totals: list[float] = []
        for share, parent in zip(shares, parents, strict=True):
            totals.append(share + (totals[parent] if parent >= 0 else 0.0))
        log_probs = tuple(totals)
    return TokenTree(tokens, parents, log_probs)


def paths(tree: TokenTree) -> set[tuple[int, ...]]:
    return {tuple(tree.token_ids[i] for i in tree.path(node)) for node in range(len(tree))}


@given(
    drafts=st.lists(st.dictionaries(st.sampled_from("abc"), trees(), min_size=1), min_size=1, max_size=6),
    decided=st.lists(st.integers(0, 3), min_size=1, max_size=6),
    max_nodes=st.integers(1, 20),
)
def test_the_merged_tree_is_a_part_of_the_union(drafts, decided, max_nodes) -> None:
    calibration, recent = Calibration(), {}
    for members in drafts:
        draft = MergedDraft.of(calibration, members, recent)
        union = set().union(*map(paths, members.values()))
        tree = draft.best(max_nodes)
        tree.validate(vocab_size=4, max_nodes=max_nodes, max_depth=12)
        assert len(tree) == min(max_nodes, len(union))
        merged = paths(tree)
        assert merged <= union and len(merged) == len(tree), "equal prefixes share nodes"
        assert tree.log_probs is not None
        assert all(
            tree.log_probs[node] < (tree.log_probs[parent] if parent >= 0 else 0.0)
            for node, parent in enumerate(tree.parents)
        )
        assert list(tree.log_probs) == sorted(tree.log_probs, reverse=True)
        for node, source in enumerate(tree.sources):
            assert tuple(tree.token_ids[i] for i in tree.path(node)) in paths(members[source])
        right = draft.learn(decided)
        assert right.keys() == members.keys()
        recent = {name: accept_length_class(tokens) for name, tokens in right.items()}


def test_form_counts_the_tokens_that_were_right() -> None:
    members = {name: TokenTree.chain(tokens) for name, tokens in {"a": [1, 2, 3, 4, 9], "b": [1, 8], "c": [7]}.items()}
    draft = MergedDraft.of(Calibration(), members, {})
    draft.best(20)
    right = draft.learn([1, 2, 3, 4, 5])
    assert right == {"a": 4, "b": 1, "c": 0}
    assert [accept_length_class(tokens) for tokens in (*right.values(), 2, 3, 60)] == [3, 1, 0, 2, 2, 3]


def test_what_proved_right_is_preferred() -> None:
    calibration = Calibration()
    members = {"boastful": TokenTree((1,), (-1,), (-0.01,)), "modest": TokenTree((2,), (-1,), (-1.0,))}
    assert MergedDraft.of(calibration, members, {}).best(1).sources == ("boastful",)
    for _ in range(40):
        draft = MergedDraft.of(calibration, members, {})
        draft.best(1)
        draft.learn([2, 5])
    tree = MergedDraft.of(calibration, members, {}).best(1)
    assert (tree.sources, tree.token_ids) == (("modest",), (2,))
    assert tree.log_probs is not None
    assert math.exp(tree.log_probs[0]) > 0.9


def test_agreement_is_learned_of_its_own() -> None:
    calibration, draw = Calibration(), Random(2)
    apart = {"a": TokenTree((1,), (-1,), (-0.7,)), "b": TokenTree((2,), (-1,), (-0.7,))}
    agree = {"a": TokenTree((3,), (-1,), (-0.7,)), "b": TokenTree((3,), (-1,), (-0.7,))}
    for _ in range(400):
        members, truth = draw.choice([(apart, 1), (apart, 2), (apart, 9), (agree, 3)])
        draft = MergedDraft.of(calibration, members, {})
        draft.best(2)
        draft.learn([truth])
    together = MergedDraft.of(calibration, agree, {}).best(1)
    alone = MergedDraft.of(calibration, apart, {}).best(1)
    assert together.log_probs is not None and alone.log_probs is not None
    assert math.exp(together.log_probs[0]) > 0.85
    assert math.exp(alone.log_probs[0]) == pytest.approx(1 / 3, abs=0.08), "who drafted something else is heard"
