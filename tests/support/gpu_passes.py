"""Passes of the GPU model, put together from spans of requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from slipstream_kernels.models.gpu.batch.limits import GpuLimits
from slipstream_kernels.models.gpu.batch.pass_plan import PassPlan
from slipstream_kernels.token_tree import TokenTree

EMPTY_TREE = TokenTree((), ())


@dataclass(frozen=True)
class Span:
    """Committed tokens of a line from position `start` on; if it `decides`, drafted nodes hang below the last."""

    line: int
    tokens: Sequence[int]
    start: int
    pages: Sequence[int]
    tree: TokenTree = field(default=EMPTY_TREE)
    decides: bool = True


def pass_of(limits: GpuLimits, spans: Sequence[Span], *, all_logits: bool = False) -> PassPlan:
    """The plan of a pass; `all_logits` asks for those of every row, and then nothing is decided."""
    size, scratch = limits.page_size, limits.num_pages * limits.page_size
    rows: list[tuple[int, ...]] = []
    logit_rows: list[int] = []
    deciding, decodes, prefills = [], [], []
    for span in spans:
        first, count, nodes = len(rows), len(span.tokens), len(span.tree)
        end = span.start + count
        for position, token in enumerate(span.tokens, span.start):
            slot = span.pages[position // size] * size + position % size
            rows.append((token, position, slot, span.line, position + 1, -2, len(rows)))
        root = len(rows) - 1
        for token, parent, depth in zip(span.tree.token_ids, span.tree.parents, span.tree.depths, strict=True):
            rows.append((token, end - 1 + depth, scratch, span.line, end, parent, root))
            scratch += 1
        alone = count == 1 or nodes > 0
        if alone:
            decodes.append((root, 1 + nodes, span.line, end))
        if count > 1:
            prefills.append((first, count - (nodes > 0), span.line, span.start))
        if span.decides and not all_logits:
            deciding.append((len(logit_rows), 1 + nodes, span.line, end))
            logit_rows.extend(range(root, len(rows)))
    if all_logits:
        logit_rows = list(range(len(rows)))
    columns = np.ascontiguousarray(np.array(rows, np.int32).reshape(-1, 7).T)
    return PassPlan(
        *columns,
        logit_rows=np.array(logit_rows, np.int32),
        deciding=np.array(deciding, np.int32).reshape(-1, 4),
        decodes=np.array(decodes, np.int32).reshape(-1, 4),
        prefills=np.array(prefills, np.int32).reshape(-1, 4),
        has_trees=any(len(span.tree) for span in spans),
    )
