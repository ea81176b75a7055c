"""Rows between two processes on a device: kernels and their twins, and trees that anybody may have written."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream_kernels.device_queue import HEADER_WORDS, RESULT_WORDS, TREE_WORDS
from slipstream_kernels.ops.gpu import device_queue as ops
from slipstream_kernels.ops.gpu.draft_trees import COUNT, LOG_PROBS, PARENTS, TREE_WIDTH
from slipstream_kernels.token_tree import MAX_ROWS, InvalidTreeError, TokenTree

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
VOCAB, NUMBER, SHORT, GARBAGE = 500, 7, 20_000, -99
HEAD = (NUMBER, 3, 12, 400, 17)
FORMS = pytest.mark.parametrize("form", ["", "_reference"], ids=["kernel", "twin"])


def tensor(values: object) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(np.asarray(values, np.int32))).to(DEVICE)


def line(source: int = 0, place: int = 0, nodes: int = MAX_ROWS - 1, depth: int = MAX_ROWS - 1, head=HEAD) -> list[int]:
    return [source, place, *head, 0, nodes, depth, *[0] * (ops.TABLE - 10)]


def row(count: int, ids=(), parents=(), logs=(), head=HEAD) -> list[int]:
    words = [GARBAGE] * TREE_WORDS
    words[: len(head)] = head
    tree = [GARBAGE] * TREE_WIDTH
    tree[: len(ids)], tree[COUNT] = ids, count
    tree[PARENTS : PARENTS + len(parents)] = parents
    tree[LOG_PROBS : LOG_PROBS + len(logs)] = np.asarray(logs, np.float32).view(np.int32).tolist()
    words[HEADER_WORDS : HEADER_WORDS + TREE_WIDTH] = tree
    return words


def take(form: str, rows: list[list[int]], lines: list[list[int]], *, word: int = NUMBER) -> torch.Tensor:
    trees = tensor(np.full((len(lines), TREE_WIDTH), GARBAGE))
    op = getattr(ops, "take_trees" + form)
    op(tensor(rows), awaited(form, tensor([word])), tensor(lines), VOCAB, trees)
    return trees.cpu()


def awaited(form: str, word: torch.Tensor) -> torch.Tensor:
    there = tensor([GARBAGE])
    getattr(ops, "await_word" + form)(word, NUMBER, SHORT, there)
    return there


@FORMS
@pytest.mark.parametrize("count", [0, 1, 5])
def test_rows_are_there_once_the_word_is(form: str, count: int) -> None:
    results = tensor(np.arange(8 * RESULT_WORDS).reshape(8, RESULT_WORDS))
    outcomes, word, counter = tensor(np.full((6, RESULT_WORDS), GARBAGE)), tensor([3]), tensor([0])
    table = tensor([line(7 - i, i) for i in range(count)]).reshape(-1, ops.TABLE)
    getattr(ops, "publish_outcomes" + form)(results, table, outcomes, counter, word, NUMBER)
    assert (int(word), int(counter)) == (NUMBER, 0)
    assert torch.equal(outcomes[:count], results[8 - count :].flip(0))
    assert bool((outcomes[count:] == GARBAGE).all())
    taken, came = tensor(np.full((5, RESULT_WORDS), GARBAGE)), tensor([GARBAGE] * 5)
    getattr(ops, "take_outcomes" + form)(outcomes, word, NUMBER, awaited(form, word), taken, came)
    assert torch.equal(taken, outcomes[:5])
    assert came.tolist() == [1] * 5


@FORMS
@pytest.mark.parametrize("word", [0, NUMBER - 2, NUMBER + 2])
def test_outcomes_of_another_pass_are_not_taken(form: str, word: int) -> None:
    taken, came = tensor(np.full((2, RESULT_WORDS), GARBAGE)), tensor([GARBAGE] * 2)
    outcomes = tensor(np.full((2, RESULT_WORDS), 5))
    other = tensor([word])
    for there in (awaited(form, other), tensor([1])):  # the second has come, and gone
        getattr(ops, "take_outcomes" + form)(outcomes, other, NUMBER, there, taken, came)
        assert not taken.any()
        assert came.tolist() == [0, 0]


@FORMS
def test_trees_arrive_as_they_were_published(form: str) -> None:
    drafted = tensor(
        [
            row(2, (4, 5), (-1, 0), (-0.5, -1.0))[HEADER_WORDS:][:TREE_WIDTH],
            row(1, (9,), (-1,), (-2.0,))[HEADER_WORDS:][:TREE_WIDTH],
        ]
    )
    rows, word, counter = tensor(np.zeros((4, TREE_WORDS))), tensor([0]), tensor([0])
    table = tensor([line(1, 0), line(0, 3)])
    getattr(ops, "publish_trees" + form)(drafted, table, rows, counter, word, NUMBER)
    trees = take(form, rows.tolist(), [line(), line(), line(), line()], word=int(word))
    assert trees[:, ops.STATE].tolist() == [ops.TAKEN, ops.NOT_MADE, ops.NOT_MADE, ops.TAKEN]
    assert trees[:, COUNT].tolist() == [1, 0, 0, 2]
    assert trees[3, :2].tolist() == [4, 5]
    assert trees[3, PARENTS : PARENTS + 2].tolist() == [-1, 0]
    assert trees[3, LOG_PROBS : LOG_PROBS + 2].view(torch.float32).tolist() == [-0.5, -1.0]


@FORMS
def test_without_the_word_nothing_is_taken(form: str) -> None:
    good = row(1, (9,), (-1,), (0.0,))
    for word in (0, NUMBER - 2, NUMBER + 2, -1):
        trees = take(form, [good, good], [line(), line()], word=word)
        assert trees[:, ops.STATE].tolist() == [ops.NO_WORD] * 2
        assert trees[:, COUNT].tolist() == [0, 0]


@FORMS
@pytest.mark.parametrize("at", range(5))
def test_a_tree_for_another_state_is_not_taken(form: str, at: int) -> None:
    head = [value + (place == at) for place, value in enumerate(HEAD)]
    trees = take(form, [row(1, (9,), (-1,), (0.0,), head)], [line()])
    assert (int(trees[0, ops.STATE]), int(trees[0, COUNT])) == (ops.NOT_MADE, 0)


WORDS = st.integers(-(2**31), 2**31 - 1)
NEAR = st.integers(-2, MAX_ROWS + 1)


@st.composite
def anybodys_rows(draw: st.DrawFn) -> tuple[list[int], int, int]:
    """A row of a tree that is right but for what may be changed in it; most nodes and levels."""
    size = draw(st.sampled_from([0, 1, 2, 7, 31, MAX_ROWS - 1]))
    ids = [draw(st.sampled_from([0, 1, VOCAB - 1])) for _ in range(size)]
    parents = [draw(st.integers(max(-1, node - 3), node - 1)) for node in range(size)]
    words = row(size, ids, parents, [-1.0] * size)
    places = st.sampled_from([*range(HEADER_WORDS, HEADER_WORDS + TREE_WIDTH), *[HEADER_WORDS + COUNT] * 20])
    for _ in range(draw(st.integers(0, 2))):
        at = HEADER_WORDS + draw(st.integers(0, max(size - 1, 0))) + draw(st.sampled_from([0, PARENTS, LOG_PROBS]))
        at = draw(st.one_of(st.just(at), places))
        words[at] = draw(st.one_of(NEAR, st.sampled_from([VOCAB, VOCAB - 1, 0x7F800000, -0x800000, 2**31 - 1]), WORDS))
    tree = TokenTree(tuple(ids), tuple(parents))
    near = st.sampled_from([-1, 0, 0, 1])
    return words, max(0, size + draw(near)), max(0, tree.depth + draw(near))


def is_legal(words: list[int], nodes: int, depth: int) -> bool:
    """What the host would say of a tree with these lists."""
    count = words[HEADER_WORDS + COUNT]
    if not 0 <= count < MAX_ROWS:
        return False
    tree = words[HEADER_WORDS : HEADER_WORDS + TREE_WIDTH]
    try:
        TokenTree(tuple(tree[:count]), tuple(tree[PARENTS : PARENTS + count])).validate(
            vocab_size=VOCAB, max_nodes=nodes, max_depth=depth
        )
    except InvalidTreeError:
        return False
    return bool(np.isfinite(np.asarray(tree[LOG_PROBS : LOG_PROBS + count], np.int32).view(np.float32)).all())


@settings(max_examples=60)
@given(st.lists(anybodys_rows(), min_size=1, max_size=3))
@FORMS
def test_a_tree_is_taken_exactly_if_the_host_would_take_it(form: str, batch) -> None:
    trees = take(form, [words for words, _, _ in batch], [line(nodes=most, depth=deep) for _, most, deep in batch])
    for (words, most, deep), taken in zip(batch, trees, strict=True):
        legal = is_legal(words, most, deep)
        assert int(taken[ops.STATE]) == (ops.TAKEN if legal else ops.MALFORMED)
        count = words[HEADER_WORDS + COUNT] if legal else 0
        assert int(taken[COUNT]) == count
        for first in (0, PARENTS, LOG_PROBS):
            assert taken[first : first + count].tolist() == words[HEADER_WORDS + first :][:count]


@settings(max_examples=40)
@given(st.lists(WORDS, min_size=TREE_WORDS, max_size=TREE_WORDS))
@FORMS
def test_whatever_is_written_what_is_taken_is_a_tree(form: str, words: list[int]) -> None:
    words[: len(HEAD)] = HEAD
    (taken,) = take(form, [words], [line(nodes=9, depth=4)])
    count = int(taken[COUNT])
    assert count == 0 or int(taken[ops.STATE]) == ops.TAKEN
    ids, parents = taken[:count].tolist(), taken[PARENTS : PARENTS + count].tolist()
    TokenTree(tuple(ids), tuple(parents)).validate(vocab_size=VOCAB, max_nodes=9, max_depth=4)
