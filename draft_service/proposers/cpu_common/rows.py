"""Plans of a draft model's forward passes: committed tokens into pages, tree nodes into scratch slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from draft_service.proposers.cpu_common.kv_cache import DraftSession
from draft_service.proposers.tree_expansion import Expansion
from slipstream_kernels.models.cpu.row_batch import RowBatch


@dataclass(slots=True)
class Branch:
    """A session and its growing tree; `slots` gives the scratch slot of each node computed so far."""

    session: DraftSession
    expansion: Expansion
    slots: dict[int, int] = field(default_factory=dict)


def committed_rows(batch: Sequence[tuple[DraftSession, int]], page_size: int, *, with_logits: bool) -> RowBatch:
    """Rows for the tokens of each session from the first uncomputed one up to the length beside it.

    The last row of a session is always among them. With logits: those of each session's last row, in order.
    """
    table = _page_table([session for session, _ in batch])
    begins = [min(session.cached, length - 1) for session, length in batch]
    counts = [length - begin for begin, (_, length) in zip(begins, batch, strict=True)]
    token_ids = np.empty(sum(counts), np.int32)
    positions = np.empty(sum(counts), np.int32)
    ends = np.cumsum(counts, dtype=np.int32)
    for begin, (session, length), end in zip(begins, batch, ends, strict=True):
        first = end - (length - begin)
        token_ids[first:end] = session.tokens[begin:length]
        positions[first:end] = np.arange(begin, length, dtype=np.int32)
    lines = np.repeat(np.arange(len(batch), dtype=np.int32), counts)
    rows = len(token_ids)
    return RowBatch(
        token_ids=token_ids,
        positions=positions,
        write_slots=table[lines, positions // page_size] * np.int32(page_size) + positions % np.int32(page_size),
        page_lines=lines,
        prefix_lengths=positions + np.int32(1),
        ancestor_slots=np.zeros((rows, 1), np.int32),
        num_ancestors=np.zeros(rows, np.int32),
        page_table=table,
        logit_rows=ends - np.int32(1) if with_logits else np.empty(0, np.int32),
    )


def node_rows(branches: Sequence[Branch], next_scratch: int) -> tuple[RowBatch, int]:
    """Rows for the frontier of each branch, all logits wanted, and the next unused scratch slot.

    Every frontier node gets a scratch slot from `next_scratch` on, noted in its branch.
    """
    tokens: list[int] = []
    positions: list[int] = []
    lines: list[int] = []
    prefixes: list[int] = []
    ancestors: list[list[int]] = []
    for line, branch in enumerate(branches):
        length = len(branch.session.tokens)
        for node in branch.expansion.frontier:
            branch.slots[node] = next_scratch
            next_scratch += 1
            path = branch.expansion.path(node)
            tokens.append(branch.expansion.token(node))
            positions.append(length - 1 + len(path))
            lines.append(line)
            prefixes.append(length)
            ancestors.append([branch.slots[ancestor] for ancestor in path])
    width = max(len(slots) for slots in ancestors)
    rows = len(tokens)
    return (
        RowBatch(
            token_ids=np.array(tokens, np.int32),
            positions=np.array(positions, np.int32),
            write_slots=np.array([slots[-1] for slots in ancestors], np.int32),
            page_lines=np.array(lines, np.int32),
            prefix_lengths=np.array(prefixes, np.int32),
            ancestor_slots=np.array([slots + [0] * (width - len(slots)) for slots in ancestors], np.int32),
            num_ancestors=np.array([len(slots) for slots in ancestors], np.int32),
            page_table=_page_table([branch.session for branch in branches]),
            logit_rows=np.arange(rows, dtype=np.int32),
        ),
        next_scratch,
    )


def _page_table(sessions: Sequence[DraftSession]) -> npt.NDArray[np.int32]:
    table = np.zeros((len(sessions), max(len(session.pages) for session in sessions)), np.int32)
    for line, session in enumerate(sessions):
        table[line, : len(session.pages)] = session.pages
    return table
