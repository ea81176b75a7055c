"""The search against trying everything: each match length, in the text itself and in past responses."""

from __future__ import annotations

import math
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draft_service.proposers.suffix.memory import TERMINATOR
from draft_service.proposers.suffix.search import SuffixSearch
from draft_service.proposers.suffix.tree import SuffixTree
from slipstream_kernels.token_tree import TokenTree

SLACK = 1e-9


class Reference:
    """Continuations of a text's end in some texts, by counting."""

    def __init__(self, texts, depth, text, least) -> None:
        self.texts, self.depth, self.text, self.least = texts, depth, tuple(text), least

    @cache  # noqa: B019 (lives as long as the example)
    def count(self, path) -> int:
        return sum(text[i : i + len(path)] == path for text in self.texts for i in range(len(text) - len(path) + 1))

    def following(self, path) -> dict[int, float]:
        """Probability of each next token."""
        if len(path) == self.depth:
            return {}
        after = {token: self.count((*path, token)) for token in {*self.text, *sum(self.texts, ()), TERMINATOR}}
        total = sum(after.values())
        return {token: n / total for token, n in after.items() if n and token != TERMINATOR}

    def longest(self) -> int:
        return max(
            (m for m in range(1, min(len(self.text), self.depth - 1) + 1) if self.count(self.text[-m:]) > self.own),
            default=0,
        )

    own = 0
    """Occurrences of the end itself."""

    def tree_score(self, match, nodes, levels) -> float:
        probs, row = [], [(self.text[-match:], 1.0)]
        for _ in range(levels):
            row = [
                ((*path, token), prob * share)
                for path, prob in row
                for token, share in self.following(path).items()
                if prob * share >= self.least - SLACK
            ]
            probs += [prob for _, prob in row]
        return sum(sorted(probs, reverse=True)[:nodes])

    def path_scores(self, path, prob, levels) -> tuple[float, float]:
        """Least and largest score of the greedy path, over all ways to break ties."""
        following = self.following(path)
        best = max(following.values(), default=0.0)
        if levels == 0 or not following or prob * best < self.least - SLACK:
            return 0.0, 0.0
        below = [
            self.path_scores((*path, token), prob * best, levels - 1)
            for token, share in following.items()
            if share > best - SLACK
        ]
        return prob * best + min(low for low, _ in below), prob * best + max(high for _, high in below)


class OwnText(Reference):
    own = 1


@st.composite
def cases(draw):
    token = st.integers(0, 2)
    return {
        "text": draw(st.lists(token, min_size=1, max_size=40)),
        "past": draw(st.lists(st.lists(token, min_size=1, max_size=25), max_size=3)),
        "depth": draw(st.integers(2, 12)),
        "factor": draw(st.sampled_from([0.5, 1.0, 2.0])),
        "offset": draw(st.sampled_from([0.0, 1.0, -1.0])),
        "least": draw(st.sampled_from([0.0, 0.1, 0.4, 1.0])),
        "nodes": draw(st.integers(1, 12)),
        "levels": draw(st.integers(1, 8)),
    }


def run(case, *, as_tree):
    local, shared = SuffixTree(case["depth"]), SuffixTree(case["depth"], removable=True)
    local.stage(0, case["text"])
    local.append(len(case["text"]))
    for response in case["past"]:
        begin = shared.end
        shared.stage(begin, [*response, TERMINATOR])
        shared.begin(begin)
        shared.append(len(response) + 1)
    search = SuffixSearch(as_tree=as_tree, factor=case["factor"], offset=case["offset"], min_prob=case["least"])
    tree = search(local.memory.address, shared.memory.address, case["nodes"], case["levels"])
    text, depth, least = case["text"], case["depth"], case["least"]
    references = [
        OwnText([tuple(text)], depth, text, least),
        Reference([(*response, TERMINATOR) for response in case["past"]], depth, text, least),
    ]
    return tree, search, references


def limits(case, match) -> tuple[int, int]:
    nodes = min(case["nodes"], math.floor(match * case["factor"] + case["offset"]))
    return max(nodes, 0), min(case["levels"], case["depth"] - match)


def check_nodes(tree, search, case, references) -> None:
    """The tree is one of the match's continuations, with their probabilities."""
    nodes, levels = limits(case, search.match_length)
    tree.validate(vocab_size=3, max_nodes=nodes, max_depth=levels)
    siblings = list(zip(tree.parents, tree.token_ids, strict=True))
    assert len(set(siblings)) == len(siblings)
    assert sum(map(math.exp, tree.log_probs)) == pytest.approx(search.score)
    end = tuple(case["text"][-search.match_length :])

    def fits(reference) -> bool:
        for node in range(len(tree)):
            path = tree.path(node)
            tokens = tuple(tree.token_ids[i] for i in path)
            above = 0.0 if len(path) == 1 else tree.log_probs[path[-2]]
            share = reference.following((*end, *tokens[:-1])).get(tokens[-1], 0.0)
            if abs(math.exp(above) * share - math.exp(tree.log_probs[node])) > SLACK:
                return False
        return True

    assert any(map(fits, references))


@given(case=cases())
@settings(max_examples=250)
def test_the_best_tree_of_all_lengths(case) -> None:
    tree, search, references = run(case, as_tree=True)
    best = max(
        (
            reference.tree_score(match, *limits(case, match))
            for reference in references
            for match in range(1, reference.longest() + 1)
        ),
        default=0.0,
    )
    assert (tree is None) == (best == 0)
    if tree is not None:
        assert search.score == pytest.approx(best)
        check_nodes(tree, search, case, references)


@given(case=cases())
@settings(max_examples=250)
def test_the_best_path_of_all_lengths(case) -> None:
    tree, search, references = run(case, as_tree=False)
    scores = [
        reference.path_scores(reference.text[-match:], 1.0, min(limits(case, match)))
        for reference in references
        for match in range(1, reference.longest() + 1)
    ]
    low, high = max((low for low, _ in scores), default=0.0), max((high for _, high in scores), default=0.0)
    assert low - SLACK <= search.score <= high + SLACK
    assert (tree is None) == (search.score == 0)
    if tree is not None:
        assert tree.parents == tuple(range(-1, len(tree) - 1))
        check_nodes(tree, search, case, references)


def test_a_longer_match_is_continued_further() -> None:
    text = list(range(1, 13))
    for match in range(1, 5):
        tree, search, _ = run(
            {"text": [*text, *text[:match]], "past": [], "depth": 32, "factor": 2.0, "offset": 0.0, "least": 0.1,
             "nodes": 63, "levels": 63},
            as_tree=True,
        )  # fmt: skip
        assert tree == TokenTree(tuple(text[match : 3 * match]), tuple(range(-1, 2 * match - 1)), (0.0,) * (2 * match))
        assert search.match_length == match


def test_past_responses_win_where_they_say_more() -> None:
    case = {"text": [7, 8, 9], "past": [[1, 7, 8, 9, 4, 5, 6, 2]], "depth": 16, "factor": 1.0, "offset": 0.0,
            "least": 0.1, "nodes": 63, "levels": 63}  # fmt: skip
    tree, search, _ = run(case, as_tree=True)
    assert tree is not None
    assert (tree.token_ids, search.match_length) == ((4, 5, 6), 3)
    case["text"] = [7, 8, 9, 11, 12, 13, 7, 8, 9]
    tree, _, _ = run(case, as_tree=True)
    assert tree is not None
    assert tree.token_ids == (11, 12, 13), "the request's own text wins ties"
