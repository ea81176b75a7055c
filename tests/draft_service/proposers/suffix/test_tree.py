"""The tree against counting by hand: which runs of tokens occur, how often, and the order of siblings."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draft_service.proposers.suffix.memory import (
    CHAIN,
    COUNT,
    DEPTH,
    FIELDS,
    FIRST,
    GROUP,
    LAST,
    NEXT,
    PARENT,
    PREV,
    START,
    TERMINATOR,
    TOKEN,
)
from draft_service.proposers.suffix.tree import SuffixTree

SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=30), min_size=1, max_size=6)


def rows_of(tree: SuffixTree) -> tuple[np.ndarray, set[int]]:
    """Rows of all nodes and the numbers of those in use."""
    memory = tree.memory
    top = memory["node_top"]
    rows = np.array(memory._nodes.array()[: top * FIELDS]).reshape(-1, FIELDS)
    live, free = set(range(top)), memory["node_free"]
    while free >= 0:
        live.remove(int(free))
        free = rows[free, CHAIN]
    assert len(live) == memory["live"] + 1, "all but the root are in a bucket"
    return rows, live


def edges_of(tree: SuffixTree) -> Counter[tuple[int, ...]]:
    """How often each edge was entered, by the tokens down to its end; checks the shape of the tree on the way."""
    rows, live = rows_of(tree)
    text = np.array(tree.memory.text)
    groups = np.array(tree.memory._groups.array()).reshape(-1, 2)
    edges: Counter[tuple[int, ...]] = Counter()
    for node in live - {0}:
        parent = rows[node, PARENT]
        assert parent in live and rows[parent, DEPTH] < rows[node, DEPTH] <= tree.max_depth
        path = text[rows[node, START] :][: rows[node, DEPTH]].tolist()
        assert path[rows[parent, DEPTH]] == rows[node, TOKEN]
        if TERMINATOR in path:
            path = path[: path.index(TERMINATOR) + 1]
        assert tuple(path) not in edges, "no path occurs twice"
        edges[tuple(path)] = int(rows[node, COUNT])
    for node in live - {0}:
        children, child = [], int(rows[node, FIRST])
        while child >= 0:
            children.append(child)
            assert rows[child, PARENT] == node
            child = int(rows[child, NEXT])
        assert (children[-1] if children else -1) == rows[node, LAST]
        assert len(children) != 1, "an edge without a branch is not divided"
        assert [rows[child, PREV] for child in children] == [-1, *children[:-1]][: len(children)]
        counts = [int(rows[child, COUNT]) for child in children]
        assert counts == sorted(counts, reverse=True)
        for count in set(counts):
            equal = [child for child in children if rows[child, COUNT] == count]
            assert len({int(rows[child, GROUP]) for child in equal}) == 1
            assert groups[rows[equal[0], GROUP]].tolist() == [equal[0], equal[-1]]
    return edges


def occurrences(texts: list[list[int]], path: tuple[int, ...], first: int = 0) -> int:
    """Of a path in texts; occurrences that start before `first` in the first text do not count."""
    return sum(
        tuple(text[i : i + len(path)]) == path
        for number, text in enumerate(texts)
        for i in range(0 if number else first, len(text) - len(path) + 1)
    )


def check(tree: SuffixTree, texts: list[list[int]], *, first: int = 0) -> None:
    """Texts end in TERMINATOR, but perhaps the last: the one under way."""
    edges = edges_of(tree)
    depth = tree.max_depth
    entered: Counter[tuple[int, ...]] = Counter()
    for number, text in enumerate(texts):
        for start in range(0 if number else first, len(text)):
            if text[start] != TERMINATOR:
                for length in range(1, min(depth, len(text) - start) + 1):
                    entered[tuple(text[start : start + length])] += 1
    ends = set(edges)
    for path, count in edges.items():
        above = max((len(end) for end in ends if len(end) < len(path) and path[: len(end)] == end), default=0)
        assert count == entered[path[: above + 1]], f"{path} below {above}"
    known = {path[:length] for path in edges for length in range(1, len(path) + 1)}
    assert set(entered) <= known, "every run of tokens is in the tree"
    if texts[-1][-1] == TERMINATOR:
        assert set(entered) == known


def fill(tree: SuffixTree, sequences: list[list[int]], pieces: int = 7) -> list[tuple[int, int]]:
    """Append whole sequences in pieces; returns where each begins and its length."""
    places = []
    for sequence in sequences:
        begin = tree.end
        tree.stage(begin, [*sequence, TERMINATOR])
        tree.begin(begin)
        places.append((begin, len(sequence)))
        for done in range(0, len(sequence) + 1, pieces):
            tree.append(min(pieces, len(sequence) + 1 - done))
    return places


@given(text=st.lists(st.integers(0, 2), min_size=1, max_size=80), depth=st.integers(1, 12), piece=st.integers(1, 80))
@settings(max_examples=150)
def test_a_text_under_way(text, depth, piece) -> None:
    tree = SuffixTree(depth)
    tree.stage(0, text)
    while tree.end < len(text):
        tree.append(min(piece, len(text) - tree.end))
        check(tree, [text[: tree.end]])


@given(sequences=SEQUENCES, depth=st.integers(1, 10))
@settings(max_examples=150)
def test_whole_sequences(sequences, depth) -> None:
    tree = SuffixTree(depth, removable=True)
    fill(tree, sequences)
    check(tree, [[*sequence, TERMINATOR] for sequence in sequences])


@given(sequences=SEQUENCES, depth=st.integers(1, 10), data=st.data())
@settings(max_examples=200)
def test_what_was_removed_leaves_no_trace(sequences, depth, data) -> None:
    tree = SuffixTree(depth, removable=True)
    places = fill(tree, sequences)
    gone = data.draw(st.integers(0, len(sequences)), label="gone")
    for begin, length in places[:gone]:
        tree.remove(begin, length)
        tree.memory.text[begin : begin + length + 1] = 99  # nothing may be read there
    left = sequences[gone:]
    rebuilt = SuffixTree(depth, removable=True)
    fill(rebuilt, left)
    assert edges_of(tree) == edges_of(rebuilt)
    fill(tree, sequences[:gone])
    fill(rebuilt, sequences[:gone])
    assert edges_of(tree) == edges_of(rebuilt)


@given(sequences=SEQUENCES, depth=st.integers(1, 10), data=st.data())
@settings(max_examples=100)
def test_a_sequence_half_removed(sequences, depth, data) -> None:
    tree = SuffixTree(depth, removable=True)
    begin, length = fill(tree, sequences)[0]
    part = data.draw(st.integers(1, length), label="part")
    tree.remove(begin, part)
    check(tree, [[*sequence, TERMINATOR] for sequence in sequences], first=part)
    tree.remove(begin + part, length - part)
    if sequences[1:]:
        check(tree, [[*sequence, TERMINATOR] for sequence in sequences[1:]])
    else:
        assert not edges_of(tree)


def test_the_most_recent_of_equals_comes_first() -> None:
    tree = SuffixTree(4)
    text = [1, 2, 1, 3, 1, 2, 1, 3, 1]
    tree.stage(0, text)
    tree.append(len(text))
    rows, live = rows_of(tree)
    one = next(node for node in live if rows[node, DEPTH] == 1 and rows[node, TOKEN] == 1)
    first = int(rows[one, FIRST])
    assert [int(rows[first, TOKEN]), int(rows[rows[first, NEXT], TOKEN])] == [3, 2]


def test_memory_grows_and_is_used_again() -> None:
    draw = np.random.default_rng(3)
    tree = SuffixTree(16, removable=True)
    sequences = [draw.integers(0, 30, 250).tolist() for _ in range(3)]
    (begin, length), *_ = fill(tree, sequences, pieces=100)
    top = tree.memory["node_top"]
    tree.remove(begin, length)
    tree.stage(begin, [*sequences[0], TERMINATOR])
    tree.begin(begin)
    tree.append(length + 1)
    assert tree.memory["node_top"] <= top + 10
    check(tree, [[*sequences[0], TERMINATOR], [*sequences[1], TERMINATOR], [*sequences[2], TERMINATOR]])


@pytest.mark.parametrize("depth", [0, 251])
def test_the_depth_is_limited(depth) -> None:
    with pytest.raises(ValueError, match="outside 1 to 250"):
        SuffixTree(depth)
