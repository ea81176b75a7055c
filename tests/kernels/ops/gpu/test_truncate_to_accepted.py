from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from slipstream_kernels.ops.gpu.gather_accepted_states import take_states, take_states_reference
from slipstream_kernels.ops.gpu.tree_walk import RESULT_WIDTH
from slipstream_kernels.ops.gpu.truncate_to_accepted import FOLLOW, settle_text, settle_text_reference

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
GARBAGE = 77
PADDING_ROWS = 3


@dataclass(frozen=True, slots=True)
class Text:
    """Rows laid out for a session's text, 0 for padding, and nodes accepted by the pass in front."""

    laid: int
    accepted: int = 0

    @property
    def left(self) -> int:
        return min(self.accepted + 1, self.laid)


SEVERAL = [Text(3, 1), Text(1, 0), Text(0), Text(5, 0), Text(4, 9)]
CASES = [
    (SEVERAL, 16, 4, 2),
    (SEVERAL, 2, 3, 3),
    (SEVERAL[:2], 8, 10, 1),
    ([Text(6, 5)], 4, 1, 4),
    ([Text(64, 40), Text(64, 63), Text(0)], 5, 16, 20),
    ([Text(2, 0)], 1, 2, 0),
    ([Text(0)], 16, 2, 2),
]
"""Texts, rows of a segment, nodes of a level, levels of nodes."""


def tensor(values: object) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(np.asarray(values, np.int32))).to(DEVICE)


def follows_of(texts: list[Text], segment_rows: int, places: list[int]) -> torch.Tensor:
    """Padding holds garbage but for its rows; the i-th session's outcome is the i-th from the last."""
    rows = np.full((len(texts), FOLLOW), GARBAGE)
    first = segment = 0
    for session, text in enumerate(texts):
        rows[session, 2] = text.laid
        if text.laid:
            rows[session, :5] = len(texts) - 1 - session, first, text.laid, places[session], segment
        first += text.laid
        segment += -(-text.laid // segment_rows)
    return tensor(rows)


def results_of(texts: list[Text]) -> torch.Tensor:
    rows = np.full((len(texts), RESULT_WIDTH), GARBAGE)
    for session, text in enumerate(texts):
        row = rows[len(texts) - 1 - session]
        row[0] = text.accepted
        row[66 : 67 + text.accepted] = 1000 * session + np.arange(text.accepted + 1)
    return tensor(rows)


@pytest.mark.parametrize(("texts", "segment_rows", "width", "levels"), CASES)
def test_rows_beyond_the_path_become_padding(texts: list[Text], segment_rows: int, width: int, levels: int) -> None:
    rows = sum(text.laid for text in texts) + PADDING_ROWS
    parts = sum(-(-text.laid // segment_rows) for text in texts) + 1
    node_parts = -(-width // segment_rows)
    nodes = len(texts) * width
    rng = np.random.default_rng(rows)
    sizes: dict[str, tuple[int, ...]] = {
        **dict.fromkeys(("token_ids", "write_slots", "prefix_lengths", "parents", "root_rows", "decode_rows"), (rows,)),
        "segments": (parts, 4),
        **dict.fromkeys(("last_rows", "root_positions"), (len(texts),)),
        **dict.fromkeys(("node_positions", "node_choices"), (levels, nodes)),
        "node_prefix_lengths": (nodes,),
        "node_segments": (len(texts) * node_parts + 1, 4),
    }
    before = {name: rng.integers(100, 1000, size) for name, size in sizes.items()}
    wanted = {name: values.copy() for name, values in before.items()}
    first = segment = 0
    for session, text in enumerate(texts):
        if not text.laid:
            continue
        live = first + text.left
        wanted["token_ids"][first:live] = 1000 * session + np.arange(text.left)
        for row in range(live, first + text.laid):
            for name, value in {
                "token_ids": 0, "write_slots": -1, "prefix_lengths": 0, "parents": -2, "root_rows": row,
                "decode_rows": -1,
            }.items():  # fmt: skip
                wanted[name][row] = value
        for row in range(0, text.laid, segment_rows):
            wanted["segments"][segment, 1] = len(range(row, min(row + segment_rows, text.left)))
            segment += 1
        wanted["last_rows"][session] = live - 1
        wanted["root_positions"][session] -= text.laid - text.left
        if levels:
            own = slice(session * width, (session + 1) * width)
            for name in ("node_positions", "node_choices", "node_prefix_lengths"):
                wanted[name][..., own] -= text.laid - text.left
            wanted["node_segments"][session * node_parts : (session + 1) * node_parts, 3] -= text.laid - text.left
        first += text.laid
    for op in (settle_text, settle_text_reference):
        arrays = {name: tensor(values) for name, values in before.items()}
        op(follows_of(texts, segment_rows, [0] * len(texts)), results_of(texts), segment_rows, width, *arrays.values())
        for name, values in wanted.items():
            assert arrays[name].tolist() == values.tolist(), name


@pytest.mark.parametrize("width", [24, 1100])
def test_states_of_the_rows_that_stay(width: int) -> None:
    """Places need not be aligned; nothing is read where no row stays, and nothing written."""
    texts = SEVERAL
    rows = sum(text.laid for text in texts)
    states = torch.randn(rows, width, generator=torch.Generator().manual_seed(1)).bfloat16()
    source = torch.full((rows * width + 100,), float("nan"), dtype=torch.bfloat16)
    wanted = torch.full((rows + PADDING_ROWS, width), 5.0, dtype=torch.bfloat16)
    places = []
    end, first = len(source), 0
    for text in texts:
        end -= text.laid * width + 7
        places.append(end)
        live = slice(first, first + text.left) if text.laid else slice(0)
        source[end : end + states[live].numel()] = states[live].flatten()
        wanted[live] = states[live]
        first += text.laid
    for op in (take_states, take_states_reference):
        features = torch.full_like(wanted, 5.0).to(DEVICE)
        op(follows_of(texts, 8, places), results_of(texts), source.to(DEVICE), features)
        assert torch.equal(features.cpu(), wanted)
