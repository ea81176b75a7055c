"""The records of the exchange as the draft service sees them; their wire forms are in draft.proto and tree.proto."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from draft_service.proposers.base import Opening
from slipstream_kernels.token_tree import TokenTree

if TYPE_CHECKING:
    import torch


class Stamp(NamedTuple):
    """Which state of which request a record belongs to; see tree.proto."""

    epoch: int
    slot: int
    generation: int
    base_length: int
    root_token: int


@dataclass(frozen=True, slots=True)
class Open:
    """A request begins or is handed over. `proposer` indexes the proposers offered at attachment."""

    stamp: Stamp
    proposer: int
    opening: Opening
    max_nodes: int
    max_depth: int


class DeviceRows(NamedTuple):
    """Rows of states in the ring of verify's GPU, `position` bytes after the attachment's beginning."""

    position: int
    rows: int
    row_bytes: int


@dataclass(frozen=True, slots=True)
class Commit:
    """Tokens one verify step added; the stamp is the state after them."""

    stamp: Stamp
    token_ids: Sequence[int]
    max_nodes: int
    max_depth: int
    features: torch.Tensor | None = None
    """bfloat16 [tokens, any], the states that predicted the tokens; None if they come in an Extend, or not at all"""
    tree_id: int = 0
    """the tree ahead that verify takes for the state, 0 for none"""
    device_rows: DeviceRows | None = None
    """where the states are, as long as `features` is None"""


@dataclass(frozen=True, slots=True)
class Extend:
    """States of a request's positions from `first_position` on: bfloat16 [positions, any]."""

    stamp: Stamp
    first_position: int
    features: torch.Tensor | None
    device_rows: DeviceRows | None = None


@dataclass(frozen=True, slots=True)
class Close:
    """The request is over."""

    stamp: Stamp


@dataclass(frozen=True, slots=True)
class Gap:
    """Records of this slot were dropped on the way."""

    stamp: Stamp


Record = Open | Extend | Commit | Close | Gap


class TreeReply(NamedTuple):
    """The tree for the state of the stamp; an empty one asks for a plain step.

    A tree ahead supposes that the step to that state accepts node `parent[1]` of tree `parent[0]` last; -1 for none.
    `sources` is empty, or has the index of an offered proposer for each node.
    """

    stamp: Stamp
    tree: TokenTree
    tree_id: int = 0
    parent: tuple[int, int] | None = None
    sources: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ResumeReply:
    """Tokens from `have_length` on are missing here; an Open is awaited."""

    stamp: Stamp
    have_length: int


@dataclass(frozen=True, slots=True)
class NackReply:
    """No trees will be made for this slot."""

    stamp: Stamp
    reason: str


@dataclass(frozen=True, slots=True)
class ShareReply:
    """The part of the requests that is wanted from now on."""

    share: float


Reply = TreeReply | ResumeReply | NackReply | ShareReply
EMPTY_TREE = TokenTree((), ())
"""Says: decode this step plainly."""
