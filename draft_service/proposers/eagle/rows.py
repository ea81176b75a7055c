"""A request of an EAGLE proposer, and the rows that its text and its tree add to a pass.

The row of position i takes the target's state there and token i + 1, so a text of n tokens has n - 1 rows, and the
last of them scores what comes next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from draft_service.heads.eagle import EagleHead, HeadRows
from draft_service.heads.layer import HeadCache, RowSegment
from draft_service.proposers.cpu_common.kv_cache import DraftSession
from draft_service.proposers.cpu_common.rows import Branch


@dataclass(slots=True)
class EagleSession:
    """A request. begin: the position of the cache's first row. waiting: the target's states of rows to compute.

    last: what the last computed row of the text left, float32 [1, hidden]; None before there is any.
    """

    draft: DraftSession
    cache: HeadCache
    begin: int
    waiting: deque[torch.Tensor] = field(default_factory=deque)
    last: torch.Tensor | None = None

    @property
    def pending(self) -> int:
        """Rows whose states are there and that are not computed."""
        return sum(len(states) for states in self.waiting)

    @property
    def is_complete(self) -> bool:
        """Whether all states that the tokens allow have come, and some have."""
        rows = self.cache.length + self.pending
        return 0 < rows == len(self.draft.tokens) - 1 - self.begin

    def take(self, rows: int) -> torch.Tensor:
        """The states of the next `rows` rows, which wait no longer."""
        taken: list[torch.Tensor] = []
        while rows:
            piece = self.waiting.popleft()
            if len(piece) > rows:
                self.waiting.appendleft(piece[rows:])
                piece = piece[:rows]
            taken.append(piece)
            rows -= len(piece)
        return torch.cat(taken)


@dataclass(slots=True)
class GrowingTree:
    """A tree and what its rows left for their children; `branch.slots` counts its rows in the cache."""

    session: EagleSession
    branch: Branch
    outputs: dict[int, torch.Tensor]


def compute_text(head: EagleHead, batch: Sequence[tuple[EagleSession, int]]) -> None:
    """Compute the next rows of each session's text, as many as beside it, at least one."""
    tokens: list[int] = []
    positions: list[torch.Tensor] = []
    states: list[torch.Tensor] = []
    for session, rows in batch:
        first = session.begin + session.cache.length
        tokens.extend(session.draft.tokens[first + 1 : first + 1 + rows])
        positions.append(torch.arange(first, first + rows))
        states.append(session.take(rows).float())
    segments = [RowSegment.committed(session.cache, rows) for session, rows in batch]
    outputs = head.forward(HeadRows(torch.tensor(tokens), head.fuse(torch.cat(states)), torch.cat(positions), segments))
    end = 0
    for session, rows in batch:
        end += rows
        session.cache.length += rows
        session.last = outputs[end - 1 : end]


def compute_nodes(head: EagleHead, trees: Sequence[GrowingTree], depth: int) -> torch.Tensor:
    """Compute the frontier of each tree, float32 [nodes, hidden] in their order; each is its children's state.

    depth: levels of the frontiers below the root, at least 1.
    """
    tokens: list[int] = []
    positions: list[int] = []
    states: list[torch.Tensor] = []
    segments: list[RowSegment] = []
    for tree in trees:
        expansion, slots, length = tree.branch.expansion, tree.branch.slots, tree.session.cache.length
        first = len(slots)
        mask = torch.zeros(len(expansion.frontier), length + first + len(expansion.frontier), dtype=torch.bool)
        mask[:, :length] = True
        for row, node in enumerate(expansion.frontier):
            slots[node] = first + row
            path = expansion.path(node)
            mask[row, [length + slots[ancestor] for ancestor in path]] = True
            tokens.append(expansion.token(node))
            positions.append(tree.session.begin + length - 1 + len(path))
            states.append(tree.outputs[path[-2] if len(path) > 1 else -1])
        segments.append(RowSegment(tree.session.cache, length + first, mask))
    rows = HeadRows(torch.tensor(tokens), torch.cat(states), torch.tensor(positions), segments, depth)
    outputs = head.forward(rows)
    begin = 0
    for tree in trees:
        for node in tree.branch.expansion.frontier:
            tree.outputs[node] = outputs[begin : begin + 1]
            begin += 1
    return outputs
