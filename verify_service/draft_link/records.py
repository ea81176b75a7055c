"""How requests and attachments begin and end, in this service's own types; the meaning is that of draft.proto."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from slipstream.generation_types import FinishReason
from slipstream_kernels.draft_protocol.follow import Follow
from slipstream_kernels.draft_protocol.records import (
    Commit,
    DeviceQueueAddress,
    DeviceRingAddress,
    Extend,
    Gap,
    RoundCost,
    SharedMemoryAddress,
    Stamp,
)
from slipstream_kernels.models.capture_layers import Bits
from verify_service.core.request import SamplingParams


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
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Close:
    """`reason` is None where the request goes on with another drafter."""

    stamp: Stamp
    reason: FinishReason | None


Command = Open | Extend[Bits] | Commit[Bits] | Close | Gap | Follow
"""Verify to draft."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A proposer as its draft service offers it. `max_nodes` counts the root."""

    name: str
    max_nodes: int
    max_depth: int
    feature_boundaries: tuple[int, ...] = ()
    needs_states: bool = False
    """It makes no tree while states of older tokens are missing."""
    device: str = ""
    """Where it computes, if not where the draft service as a whole does."""
    own_text_only: bool = False
    """Its trees follow from the request's own tokens and from weights alone."""
    follows: bool = False
    """It drafts behind a pass under way, through a queue on the device."""
    round_costs: tuple[RoundCost, ...] = ()
    """What its rounds take, in its own words."""


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
    asks_ahead: bool = False
    """Whether it asks to draft for steps whose state is not known yet, as versions did that are older than this one."""
    device: str = ""
    """Where the proposers compute, by the drafter's own numbers."""
    gpu_uuid: str = ""
    unfit: tuple[Unfit, ...] = ()
    """Beside the offers; they are none."""
    mps: bool = False
    """Whether it is a client of NVIDIA MPS on that GPU."""


@dataclass(frozen=True, slots=True)
class AttachReply:
    version: int
    epoch: int
    transport: str
    num_slots: int
    deadline_us: int
    shared_memory: SharedMemoryAddress | None = None
    device_ring: DeviceRingAddress | None = None
    transport_reason: str = ""
    """Why `transport` is not a better one that both list."""
    device_queue: DeviceQueueAddress | None = None


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
