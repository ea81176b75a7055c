from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream_kernels.ops.gpu.outcome_select import (
    count_splits,
    count_splits_reference,
    select_outcomes,
    select_outcomes_reference,
)
from slipstream_kernels.ops.gpu.position_splits import num_splits, own_block
from slipstream_kernels.ops.gpu.tree_walk import RESULT_WIDTH
from slipstream_kernels.token_tree import TokenTree

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
GARBAGE = 77
PAGES = 9
EMPTY = TokenTree((), ())


@dataclass(frozen=True, slots=True)
class Request:
    """Accepted nodes of the pass before; the tree; rows of padding behind it; where the root stood if none was."""

    accepted: int
    tree: TokenTree = EMPTY
    spare: int = 0
    start: int = 0

    @property
    def rows(self) -> int:
        return 1 + len(self.tree) + self.spare


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    size = draw(st.integers(1, 12))
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(size))
    return TokenTree(tuple(range(20, 20 + size)), parents)


requests = st.builds(Request, st.integers(0, 4), st.just(EMPTY) | trees(), st.integers(0, 3), st.integers(0, 60))


def tensor(values: object) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(np.asarray(values, np.int32))).to(DEVICE)


def run(op, batch: list[Request | None], page_size: int, segment_rows: int) -> dict[str, list]:
    """What the arrays of a pass hold afterwards; None is padding among the choices. Line i is the i-th request's."""
    found = [request for request in batch if request is not None]
    choices, nodes, deciding, segments = [], [], [], []
    root = 0
    for request in batch:
        if request is None:
            choices.append([0, GARBAGE, 0, 0, 0, GARBAGE, 9, 0])
            continue
        item = len(deciding)
        choices.append(
            [item, len(found) - 1 - item, request.start, root, request.rows, len(nodes), len(request.tree),
             len(segments)]
        )  # fmt: skip
        tree = request.tree
        nodes += [[*each, GARBAGE] for each in zip(tree.token_ids, tree.parents, tree.depths, strict=True)]
        deciding.append([root, request.rows, item, GARBAGE])
        parts = range(0, request.rows, segment_rows)
        segments += [[root + first, min(segment_rows, request.rows - first), item, GARBAGE] for first in parts]
        root += request.rows
    result = np.full((len(found), RESULT_WIDTH), GARBAGE, np.int32)
    for row, request in zip(result[::-1], found, strict=True):
        row[0] = request.accepted
    rows = np.arange(root + 2)  # and two rows of padding, which stay as they are
    lines = np.full(len(rows), GARBAGE)
    for item, (first, count, _, _) in enumerate(deciding):
        lines[first : first + count] = item
    arrays = {name: np.full(len(rows), GARBAGE) for name in ("positions", "prefix_lengths", "parents")}
    arrays["token_ids"] = np.full(len(rows), GARBAGE)
    for first, _, _, _ in deciding:
        arrays["token_ids"][first], arrays["parents"][first] = -1, -2
    arrays |= {"root_rows": rows, "logit_rows": rows, "decode_rows": rows, "write_slots": 1000 + rows}
    moved = {name: tensor(values) for name, values in arrays.items()}
    moved |= {"deciding": tensor(deciding).reshape(-1, 4), "segments": tensor(segments).reshape(-1, 4)}
    pages = tensor(100 * np.arange(max(1, len(found)))[:, None] + np.arange(64 // page_size + 2))
    names = (
        "token_ids", "positions", "write_slots", "prefix_lengths", "parents", "root_rows", "logit_rows", "deciding",
        "decode_rows", "segments",
    )  # fmt: skip
    op(
        tensor(choices).reshape(-1, 8), tensor(nodes).reshape(-1, 4), tensor(result),
        pages, page_size, segment_rows, tensor(lines), *(moved[name] for name in names),
    )  # fmt: skip
    return {name: moved[name].tolist() for name in names}


def check(batch: list[Request | None], page_size: int, segment_rows: int) -> None:
    for op in (select_outcomes, select_outcomes_reference):
        arrays = run(op, batch, page_size, segment_rows)
        root = segment = 0
        for item, request in enumerate(request for request in batch if request is not None):
            tree, position = request.tree, request.start + request.accepted
            live, end = root + 1 + len(tree), root + request.rows
            slot = (100 * item + position // page_size) * page_size + position % page_size
            idle = range(live, end)
            expected = {
                "token_ids": [-1, *tree.token_ids, *(0 for _ in idle)],
                "positions": [position, *(position + depth for depth in tree.depths), *(0 for _ in idle)],
                "write_slots": [slot, *(1000 + row for row in range(root + 1, live)), *(-1 for _ in idle)],
                "prefix_lengths": [position + 1] * (1 + len(tree)) + [0 for _ in idle],
                "parents": [-2, *tree.parents, *(-2 for _ in idle)],
                "root_rows": [root] * (1 + len(tree)) + list(idle),
                "logit_rows": [*range(root, live), *(-1 for _ in idle)],
                "decode_rows": [*range(root, live), *(-1 for _ in idle)],
            }
            for name, values in expected.items():
                assert arrays[name][root:end] == values, name
            assert arrays["deciding"][item] == [root, 1 + len(tree), item, position + 1]
            for first in range(0, request.rows, segment_rows):
                rows = min(max(1 + len(tree) - first, 0), segment_rows)
                assert arrays["segments"][segment] == [root + first, rows, item, position + 1]
                segment += 1
            root = end
        assert arrays["root_rows"][root:] == arrays["logit_rows"][root:] == [root, root + 1]
        assert arrays["write_slots"][root:] == [1000 + root, 1001 + root]
        assert arrays["parents"][root:] == [GARBAGE, GARBAGE]


@given(st.lists(st.none() | requests, min_size=1, max_size=3), st.sampled_from([1, 4, 16]), st.integers(1, 16))
@settings(max_examples=20)
def test_roots_stand_where_the_pass_before_ended_with_their_trees_below_them(
    batch: list[Request | None], page_size: int, segment_rows: int
) -> None:
    check(batch, page_size, segment_rows)


def test_the_largest_tree_behind_the_longest_path() -> None:
    chain = TokenTree.chain([5] * 63)
    check([Request(63, chain, 0, 1)], 16, 21)
    check([Request(63, EMPTY, 63, 1)], 16, 21)


def test_splits_are_counted_as_the_host_does() -> None:
    rng = np.random.default_rng(1)
    for count in (1, 16, 700):
        lengths = rng.integers(1, 40000, count)
        segments = np.stack([np.arange(count), rng.integers(0, 3, count), 0 * lengths, lengths], axis=1)
        expected = [num_splits(own_block(prefix)) if rows else 0 for _, rows, _, prefix in segments.tolist()]
        for op in (count_splits, count_splits_reference):
            offsets = tensor([0, *[GARBAGE] * count])
            op(tensor(segments), offsets)
            assert offsets.tolist() == [0, *np.cumsum(expected)]
