"""Between protobuf messages of DraftAdminService and the service's own types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draft_service.proposers.base import Proposer
from draft_service.protocol.codec import Identity, encode_offer
from slipstream.rpc.errors import InvalidArgumentError
from slipstream.v1 import draft_pb2


@dataclass(frozen=True, slots=True)
class AdminState:
    """What runs here and what it is attached to, or why it is not."""

    proposers: Sequence[Proposer]
    verify_address: str
    attached: bool
    epoch: int
    sessions: int
    trees_sent: int
    transport: str = ""
    transport_reason: str = ""
    refusal: str = ""


def encode_admin(state: AdminState, identity: Identity) -> draft_pb2.DraftAdminServiceGetInfoResponse:
    return draft_pb2.DraftAdminServiceGetInfoResponse(
        proposers=[encode_offer(proposer) for proposer in state.proposers],
        verify_address=state.verify_address,
        attached=state.attached,
        epoch=state.epoch,
        sessions=state.sessions,
        process_id=identity.process_id,
        version=identity.version,
        trees_sent=state.trees_sent,
        transport=state.transport,
        transport_reason=state.transport_reason,
        device=identity.placement.device,
        gpu_uuid=identity.placement.gpu_uuid,
        refusal=state.refusal,
    )


def decode_share(message: draft_pb2.SetShareRequest) -> float:
    """Raises InvalidArgumentError unless it is from 0 to 1."""
    if not 0.0 <= message.share <= 1.0:
        raise InvalidArgumentError(f"share must be from 0 to 1, got {message.share}", field="share")
    return message.share


def encode_share_set() -> draft_pb2.SetShareResponse:
    return draft_pb2.SetShareResponse()
