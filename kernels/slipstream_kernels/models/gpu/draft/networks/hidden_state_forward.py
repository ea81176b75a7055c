"""What a round asks of a network that drafts from one state of the target for each tree."""

from __future__ import annotations

from typing import Protocol

import torch


class HiddenStateForward(Protocol):
    """A draft's network. All but `allocate` queues ops on the current stream, allocates nothing and never waits."""

    @property
    def levels(self) -> int:
        """Tokens of the longest path."""
        ...

    @property
    def features(self) -> int:
        """Width of the target's states."""
        ...

    @property
    def entries(self) -> int:
        """Tokens that it scores."""
        ...

    @property
    def independent(self) -> bool:
        """Whether a level's scores are the same below all nodes: then `score_levels` may be called."""
        ...

    @property
    def device(self) -> torch.device: ...

    @property
    def vocabulary(self) -> torch.Tensor | None:
        """int32 [entries], the target's id of each entry; None where both are the same."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        ...

    def activation_bytes(self, sessions: int, width: int) -> int:
        """What `allocate` takes."""
        ...

    def allocate(self, sessions: int, width: int) -> None:
        """Make room for rounds of up to so many sessions, with `width` nodes of each at a level; once, before any."""
        ...

    def roots(self, states: torch.Tensor, token_ids: torch.Tensor, levels: int) -> None:
        """Begin a round of `levels` levels.

        states: bfloat16 [sessions, features], the target's that predicted each session's newest token; token_ids: int32
        [sessions], these tokens.
        """
        ...

    def nodes(self, depth: int, token_ids: torch.Tensor, parent_rows: torch.Tensor) -> None:
        """Compute nodes `depth` levels below the roots, 1 or more, `width` a session.

        int32 [sessions * width] token_ids and parent_rows, rows of the pass in front, of the roots where depth is 1.
        """
        ...

    def score(self, depth: int, logits: torch.Tensor) -> None:
        """Logits of what follows the roots (depth 0) or the nodes computed last: float32 [rows, entries]."""
        ...

    def score_levels(self, logits: torch.Tensor) -> None:
        """Logits of all of a round's levels: float32 [levels * sessions, entries], the first level's first."""
        ...
