"""The records of the exchange in this service's own types; their meaning is that of slipstream/v1/draft.proto."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from slipstream.generation_types import FinishReason
from slipstream_kernels.models.capture_layers import Bits
from slipstream_kernels.token_tree import TokenTree
from verify_service.core.request import SamplingParams
from verify_service.hidden_states.device_ring import DeviceRows


class Stamp(NamedTuple):
    """The state of a request that a record belongs to. `base_length` counts committed tokens, the root included."""

    epoch: int
    slot: int
    generation: int
    base_length: int
    root_token: int


class Mode(Enum):
    """When a drafter makes trees, and whether a step waits for them; see DraftMode in draft.proto."""

    LOCKSTEP = "lockstep"
    AHEAD = "ahead"
    AHEAD_OR_WAIT = "ahead-or-wait"


class ParentNode(NamedTuple):
    """The node of a tree that a step accepted last; `node` is -1 where it accepted none."""

    tree_id: int
    node: int


NO_NODE = ParentNode(0, -1)
"""The step accepted no drafted token, whether it had a tree or not."""


@dataclass(frozen=True, slots=True)
class Open:
    stamp: Stamp
    proposer: int
    token_ids: tuple[int, ...]
    prompt_length: int
    sampling: SamplingParams
    choice_index: int
    tenant: str
    adapter_id: str
    cached_length: int
    max_nodes: int
    max_depth: int


@dataclass(frozen=True, slots=True)
class Commit:
    stamp: Stamp
    token_ids: tuple[int, ...]
    max_nodes: int
    max_depth: int
    hidden_states: Bits | None = None
    """A row for each of `token_ids`; None where none are wanted, or they come in an `Extend`."""
    tree_id: int = 0
    """The tree ahead that is taken for this state."""
    device_rows: DeviceRows | None = None
    """Rows in the device ring, instead of `hidden_states`."""


@dataclass(frozen=True, slots=True)
class Extend:
    """States of the positions from `first_position` on, bits of bfloat16 [positions, boundaries * hidden_size]."""

    stamp: Stamp
    first_position: int
    hidden_states: Bits | None = None
    device_rows: DeviceRows | None = None


@dataclass(frozen=True, slots=True)
class Close:
    """`reason` is None where the request goes on with another drafter."""

    stamp: Stamp
    reason: FinishReason | None


@dataclass(frozen=True, slots=True)
class Gap:
    stamp: Stamp
    dropped: int


Command = Open | Extend | Commit | Close | Gap
"""Verify to draft."""


class TreeReply(NamedTuple):
    """A tree whose lists have been read but not yet checked. `sources` is empty or has one entry a node.

    A tree ahead has a `parent`: how the step before the stamp's state is supposed to end, NO_NODE for every tree_id
    where no node is accepted.
    """

    stamp: Stamp
    tree: TokenTree
    sources: tuple[int, ...] = ()
    tree_id: int = 0
    parent: ParentNode | None = None


@dataclass(frozen=True, slots=True)
class Resume:
    stamp: Stamp
    have_length: int


@dataclass(frozen=True, slots=True)
class Nack:
    stamp: Stamp
    reason: str


@dataclass(frozen=True, slots=True)
class TrafficWeight:
    """The part of the requests that the drafter takes from now on; it belongs to no slot."""

    share: float


Reply = TreeReply | Resume | Nack | TrafficWeight
"""Draft to verify."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A proposer as its draft service offers it. `max_nodes` counts the root."""

    name: str
    max_nodes: int
    max_depth: int
    feature_boundaries: tuple[int, ...] = ()
    lockstep: bool = False
    """It makes no trees ahead, whatever the attachment's mode."""
    needs_states: bool = False
    """It makes no tree while states of older tokens are missing."""
    device: str = ""
    """Where it computes, if not where the draft service as a whole does."""


class Unfit(NamedTuple):
    """A proposer of a draft service that does not fit the model, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class AttachRequest:
    min_version: int
    max_version: int
    token: str
    offers: tuple[Offer, ...]
    tokenizer_fingerprint: str
    vocab_size: int
    transports: tuple[str, ...]
    name: str
    address: str
    process_id: int
    share: float | None = None
    mode: Mode = Mode.LOCKSTEP
    fan_out: int = 0
    device: str = ""
    """Where the proposers compute, by the drafter's own numbers."""
    gpu_uuid: str = ""
    unfit: tuple[Unfit, ...] = ()
    """Beside the offers; they are none."""


@dataclass(frozen=True, slots=True)
class RingAddress:
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
class AttachReply:
    version: int
    epoch: int
    transport: str
    num_slots: int
    deadline_us: int
    shared_memory: SharedMemoryAddress | None = None
    max_ahead: int = 0
    device_ring: DeviceRingAddress | None = None
    transport_reason: str = ""
    """Why `transport` is not a better one that both list."""


@dataclass(frozen=True, slots=True)
class LinkFacts:
    """What a drafter has to know, and to match, before it attaches."""

    model_fingerprint: str
    tokenizer_fingerprint: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    max_context: int
    max_nodes: int
    feature_boundaries: tuple[int, ...] = ()
    """Boundaries whose states can be captured."""
    most_boundaries: int = 0
    """How many of them at once."""
