"""Records of the exchange that mean the same at both ends; their meaning is that of slipstream/v1/draft.proto.

What a request is opened and closed with each end has in types of its own. `States` is how an end holds hidden states:
the verify service as bits in numpy, the draft service as tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from slipstream_kernels.token_tree import TokenTree

States = TypeVar("States")


class Stamp(NamedTuple):
    """The state of a request that a record belongs to. `base_length` counts committed tokens, the root included."""

    epoch: int
    slot: int
    generation: int
    base_length: int
    root_token: int


class Reservation(Protocol):
    """The part of a device ring that rows lie in, as their writer keeps it."""

    def on_sent(self, message: int) -> None:
        """One of the records that name it has gone out in the message of this number."""
        ...


class DeviceRows(NamedTuple):
    """Rows of states in the ring of verify's GPU, `position` bytes after the attachment's beginning.

    `reservation` is there where they are written.
    """

    position: int
    rows: int
    row_bytes: int
    reservation: Reservation | None = None


class Commit(NamedTuple, Generic[States]):
    """Tokens that one verify step added; the stamp is the state after them."""

    stamp: Stamp
    token_ids: Sequence[int]
    max_nodes: int
    max_depth: int
    hidden_states: States | None = None
    """bfloat16 [tokens, any], the states that predicted the tokens; None if they come in an Extend, or not at all"""
    device_rows: DeviceRows | None = None
    """where the states are, as long as `hidden_states` is None"""
    handed: bool = False
    """whether the step from this state has its tree from the device's queue, so that no answer is needed"""


@dataclass(frozen=True, slots=True)
class Extend(Generic[States]):
    """States of a request's positions from `first_position` on: bfloat16 [positions, boundaries * hidden_size]."""

    stamp: Stamp
    first_position: int
    hidden_states: States | None = None
    device_rows: DeviceRows | None = None


@dataclass(frozen=True, slots=True)
class Gap:
    """So many records of this slot were dropped on the way."""

    stamp: Stamp
    dropped: int


class TreeReply(NamedTuple):
    """The tree for the state of the stamp; an empty one asks for a plain step.

    `sources` is empty, or has the index of an offered proposer for each node. Trees of another process have been read,
    but not yet checked.
    """

    stamp: Stamp
    tree: TokenTree
    sources: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Resume:
    """Tokens from `have_length` on are missing at the drafter; an Open is awaited."""

    stamp: Stamp
    have_length: int


@dataclass(frozen=True, slots=True)
class Nack:
    """No trees will be made for this slot."""

    stamp: Stamp
    reason: str


@dataclass(frozen=True, slots=True)
class TrafficWeight:
    """The part of the requests that the drafter takes from now on; it belongs to no slot."""

    share: float


Reply = TreeReply | Resume | Nack | TrafficWeight
"""Draft to verify."""


class RingAddress(NamedTuple):
    """Where a ring can be opened, and its size in bytes, header included."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class SharedMemoryAddress:
    """The rings of one attachment. The nonce tells them from anything else that the paths may name."""

    to_draft: RingAddress
    to_verify: RingAddress
    nonce: bytes


@dataclass(frozen=True, slots=True)
class DeviceRingAddress:
    """The device ring of one attachment: the handle to open it by, its size in bytes, and the GPU that has it."""

    handle: bytes
    size: int
    gpu_uuid: str


@dataclass(frozen=True, slots=True)
class DeviceQueueAddress:
    """The device queue of one attachment, named as a ring is, and how many requests a pass has at most."""

    handle: bytes
    size: int
    gpu_uuid: str
    rows: int


class RoundCost(NamedTuple):
    """What a round takes, as a drafter has measured it before it attaches.

    Seconds from the call for the trees of so many requests, `levels` deep at most, to the trees on the host.
    """

    requests: int
    levels: int
    seconds: float
