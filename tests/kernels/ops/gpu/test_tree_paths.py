from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream_kernels.ops.gpu.tree_paths import tree_paths, tree_paths_reference
from slipstream_kernels.token_tree import TokenTree

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
UNTOUCHED = -9


@st.composite
def batches(draw: st.DrawFn) -> list[TokenTree | None]:
    """Trees and, as None, rows of a prompt or of padding."""
    batch: list[TokenTree | None] = []
    for _ in range(draw(st.integers(1, 3))):
        size = draw(st.integers(0, 7))
        parents = tuple(draw(st.integers(-1, node - 1)) for node in range(size))
        batch.append(draw(st.sampled_from([None, TokenTree((0,) * size, parents)])))
    return batch


def run(op, batch: list[TokenTree | None]) -> tuple[list[list[int]], list[int]]:
    parents, roots = [], []
    for tree in batch:
        root = len(parents)
        nodes = () if tree is None else tree.parents
        parents += [-2, *nodes]
        roots += [root] * (1 + len(nodes))
    rows = len(parents)
    paths = torch.full((rows, 64), UNTOUCHED, dtype=torch.int32, device=DEVICE)
    depths = torch.full((rows,), UNTOUCHED, dtype=torch.int32, device=DEVICE)
    op(*(torch.tensor(x, dtype=torch.int32, device=DEVICE) for x in (parents, roots)), paths, depths)
    return paths.tolist(), depths.tolist()


def check(batch: list[TokenTree | None]) -> None:
    expected: list[list[int]] = []
    for tree in batch:
        root = len(expected)
        expected.append([])
        if tree is not None:
            expected += [[root + 1 + node for node in tree.path(leaf)] for leaf in range(len(tree))]
    for op in (tree_paths, tree_paths_reference):
        paths, depths = run(op, batch)
        assert depths == [len(path) for path in expected]
        assert [found[: len(path)] for found, path in zip(paths, expected, strict=True)] == expected
        assert all(set(found[len(path) :]) <= {UNTOUCHED} for found, path in zip(paths, expected, strict=True))


@given(batches())
@settings(max_examples=25)
def test_paths_are_the_trees(batch: list[TokenTree | None]) -> None:
    check(batch)


def test_largest_trees() -> None:
    star = TokenTree((0,) * 63, (-1,) * 63)
    check([None, TokenTree.chain([0] * 63), star])
