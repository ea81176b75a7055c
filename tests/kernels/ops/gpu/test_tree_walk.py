from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream_kernels.ops.gpu.sampling_table import allocate_sampling_tensors, pack_line
from slipstream_kernels.ops.gpu.tree_walk import RESULT_WIDTH, tree_walk, tree_walk_reference
from slipstream_kernels.token_tree import TokenTree

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
VOCAB = 3
LINES = 4
UNTOUCHED = -9
PENALTIES = {0, 2}
"""Lines with penalties."""


@dataclass(frozen=True, slots=True)
class Item:
    """A tree, the tokens sampled at its root and nodes, its line; None in a batch is padding."""

    tree: TokenTree
    sampled: tuple[int, ...]
    line: int
    left_out: bool = False


@st.composite
def batches(draw: st.DrawFn) -> list[Item | None]:
    tokens = st.integers(0, VOCAB - 1)
    batch: list[Item | None] = []
    for line in draw(st.permutations(range(LINES)))[: draw(st.integers(1, 3))]:
        size = draw(st.integers(0, 10))
        parents = tuple(draw(st.integers(-1, node - 1)) for node in range(size))
        tree = TokenTree(tuple(draw(tokens) for _ in range(size)), parents)
        item = Item(tree, tuple(draw(tokens) for _ in range(size + 1)), line, left_out=draw(st.booleans()))
        batch.append(draw(st.sampled_from([item, item, None])))
    return batch


def integers(values: list) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def run(op, batch: list[Item | None]) -> tuple[list[list[int]], list[int], list[list[int]]]:
    """result, last_tokens, output_counts. Trees' rows follow 2 rows of a prompt; logits' order is that of rows."""
    parents, ids, logit_rows, sampled, deciding = [-2, -2], [0, 0], [1], [0], []
    for item in batch:
        if item is None:
            deciding.append([0, 0, 0, 0])
            continue
        deciding.append([len(logit_rows), -1 if item.left_out else len(item.sampled), item.line, 10])
        logit_rows += range(len(parents), len(parents) + len(item.sampled))
        sampled += item.sampled
        parents += [-2, *item.tree.parents]
        ids += [0, *item.tree.token_ids]
    tensors = allocate_sampling_tensors(LINES, VOCAB, DEVICE)
    for line in range(LINES):
        params = pack_line(presence=float(line in PENALTIES), has_bias=True, min_position=3)
        tensors.params[line] = torch.from_numpy(params).to(DEVICE)
    last_tokens = integers([UNTOUCHED] * LINES)
    result = torch.full((len(batch), RESULT_WIDTH), UNTOUCHED, dtype=torch.int32, device=DEVICE)
    op(*map(integers, (sampled, deciding, logit_rows, parents, ids)), last_tokens, tensors, result)
    return result.tolist(), last_tokens.tolist(), tensors.output_counts.tolist()


def check(batch: list[Item | None]) -> None:
    rows, last = [], [UNTOUCHED] * LINES
    counts = [[0] * VOCAB for _ in range(LINES)]
    for item in batch:
        row = [0] * RESULT_WIDTH
        rows.append(row)
        if item is None:
            continue
        if item.left_out:
            row[:] = [UNTOUCHED] * RESULT_WIDTH
            continue
        accepted, committed = item.tree.walk(item.sampled[0], item.sampled[1:])
        row[:2] = len(accepted), item.line
        row[2 : 2 + len(accepted)] = accepted
        row[66 : 66 + len(committed)] = committed
        last[item.line] = committed[-1]
        for token in (token for token in committed if token >= 0):
            counts[item.line][token] += item.line in PENALTIES
    for op in (tree_walk, tree_walk_reference):
        assert run(op, batch) == (rows, last, counts)


@given(batches())
@settings(max_examples=40)
def test_walks_as_token_trees_do(batch: list[Item | None]) -> None:
    check(batch)


def test_follows_the_longest_chain() -> None:
    chain = Item(TokenTree.chain([1] * 63), (1,) * 63 + (2,), 2)
    check([None, chain])


def test_nothing_follows_what_could_not_be_decided() -> None:
    tree = TokenTree((1, 0, 2), (-1, 0, 1))
    check([Item(tree, (-1, 2, 2, 0), 0), Item(tree, (1, -1, 2, 0), 2), Item(tree, (1, 0, 2, -1), 1)])


def test_of_equal_siblings_the_first_is_followed() -> None:
    tree = TokenTree((1, 1, 2, 2), (-1, -1, 1, 0))
    check([Item(tree, (1, 2, 2, 0, 1), 0)])
