"""The compiled index against looking through the text, while it grows."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from draft_service.proposers.ngram.index import NgramIndex, TrieRoom
from slipstream_kernels.token_tree import TokenTree


def looked_through(tokens, lengths, *, max_nodes, max_depth, max_matches, trust) -> TokenTree | None:
    found: dict[int, int] = {}
    for n in reversed(lengths):
        for position in range(len(tokens) - 1, n - 1, -1):
            if n <= len(tokens) and tokens[position - n : position] == tokens[-n:] and len(found) < max_matches:
                found.setdefault(position, n)
    children: dict[tuple[int, int], int] = {}
    for position, n in found.items():
        node = -1
        for token in tokens[position : position + min(max_depth, trust * n)]:
            if (node, token) not in children and len(children) == max_nodes:
                break
            node = children.setdefault((node, token), len(children))
    return (
        TokenTree(tuple(token for _, token in children), tuple(parent for parent, _ in children)) if children else None
    )


@given(
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    first=st.integers(1, 60),
    shortest=st.integers(1, 3),
    extra=st.integers(0, 3),
    max_nodes=st.integers(1, 20),
    max_depth=st.integers(1, 10),
    max_matches=st.integers(1, 8),
    trust=st.integers(1, 4),
)
@settings(max_examples=300)
def test_trees_are_those_of_the_text(tokens, first, shortest, extra, max_nodes, max_depth, max_matches, trust) -> None:
    lengths = range(shortest, shortest + extra + 1)
    limits = {"max_depth": max_depth, "max_matches": max_matches, "trust": trust}
    index, room = NgramIndex(lengths, tokens[:first]), TrieRoom(max_matches)
    for end in range(min(first, len(tokens)), len(tokens) + 1):
        index.extend(tokens[index.length : end])
        while not index.advance(7):
            pass
        # Where the budget ends inside a continuation, the rest of the matches adds nothing.
        tree = index.tree(room, max_nodes=max_nodes, **limits)
        whole = looked_through(tokens[:end], lengths, max_nodes=10**6, **limits)
        assert tree == (None if whole is None else whole.truncated(max_nodes, 63))


def test_an_index_that_outgrows_its_room_is_made_again() -> None:
    tokens = [*range(10, 400), 10, 11]
    index, room = NgramIndex(range(1, 4), tokens[:100]), TrieRoom(4)
    assert index.advance(100)
    capacity = len(index._text)
    index.extend(tokens[100:])
    assert len(index._text) > capacity
    assert not index.advance(50)
    assert index.advance(1000)
    assert index.tree(room, max_nodes=8, max_depth=3, max_matches=4, trust=3) == TokenTree.chain((12, 13, 14))
