"""The records by which requests begin and end, as this service sees them; their wire forms are in draft.proto."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from draft_service.proposers.base import Opening
from slipstream_kernels.draft_protocol.records import Commit, Extend, Gap, Stamp
from slipstream_kernels.token_tree import TokenTree

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Open:
    """A request begins or is handed over. `proposer` indexes the proposers offered at attachment.

    `request_id` names the request in logs; empty if it has no name.
    """

    stamp: Stamp
    proposer: int
    opening: Opening
    max_nodes: int
    max_depth: int
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Close:
    """The request is over, or goes on with another drafter."""

    stamp: Stamp


Record: TypeAlias = "Open | Extend[torch.Tensor] | Commit[torch.Tensor] | Close | Gap"
"""Verify to draft."""
EMPTY_TREE = TokenTree((), ())
"""Says: decode this step plainly."""
