"""Between protobuf messages of the exchange and the service's own types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from draft_service.proposers.base import Opening, Proposer, Sampling, Target
from draft_service.proposers.hidden_states import bfloat16_rows
from draft_service.protocol.placement import CPU, Placement
from draft_service.protocol.records import Close, Open, Record
from slipstream.request_context import is_request_id
from slipstream.rpc.errors import FailedPreconditionError, UnavailableError
from slipstream.v1 import draft_pb2, sampling_pb2, tensor_pb2, tree_pb2
from slipstream_kernels.draft_protocol.follow import Follow
from slipstream_kernels.draft_protocol.proposer_host import EnqueueRequest
from slipstream_kernels.draft_protocol.records import (
    Commit,
    DeviceQueueAddress,
    DeviceRingAddress,
    DeviceRows,
    Extend,
    Gap,
    Nack,
    Reply,
    Resume,
    RingAddress,
    SharedMemoryAddress,
    Stamp,
    TrafficWeight,
    TreeReply,
)

if TYPE_CHECKING:
    import torch

PROTOCOL_VERSION = 1
CUDA_IPC, SHM, GRPC = "cuda_ipc", "shm", "grpc"
TRANSPORTS = (CUDA_IPC, SHM, GRPC)
REPLIES_PER_SLOT = 4
"""Replies that verify takes in one message, for each slot of the attachment."""
BYTES_PER_REPLY = 2048
"""Bytes that verify takes in one message, for each of these replies."""
MAX_REASON = 200
"""Characters of a refusal's reason that are sent."""
MAX_MISFIT = 300
"""Characters of the reason why a proposer does not fit that are sent."""
NO_MISFITS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class AttachGrant:
    """What verify granted: the epoch of all stamps, the number of slots, and the best transport of both."""

    epoch: int
    num_slots: int
    transport: str = "grpc"
    shared_memory: SharedMemoryAddress | None = None
    device_ring: DeviceRingAddress | None = None
    transport_reason: str = ""
    """Why `transport` is not a better one that both ends list."""
    deadline: float = inf
    """Seconds that a verify step waits for trees at most."""
    device_queue: DeviceQueueAddress | None = None

    @property
    def replies_per_message(self) -> int:
        """Most replies that verify takes in one message."""
        return REPLIES_PER_SLOT * self.num_slots


@dataclass(frozen=True, slots=True)
class Identity:
    """What verify and operators are told of this process."""

    name: str
    address: str
    process_id: int
    version: str
    placement: Placement = CPU


def info_request() -> draft_pb2.DraftLinkServiceGetInfoRequest:
    return draft_pb2.DraftLinkServiceGetInfoRequest()


def decode_target(message: draft_pb2.DraftLinkServiceGetInfoResponse) -> Target:
    """Raises FailedPreconditionError when the protocol versions do not overlap."""
    if not message.min_version <= PROTOCOL_VERSION <= message.max_version:
        raise FailedPreconditionError(
            f"verify speaks versions {message.min_version} to {message.max_version} of the exchange, "
            f"this draft service {PROTOCOL_VERSION}"
        )
    return Target(
        message.vocab_size,
        message.tokenizer_fingerprint,
        message.max_context,
        message.hidden_size,
        message.num_layers,
        tuple(message.feature_boundaries),
    )


def decode_transports(message: draft_pb2.DraftLinkServiceGetInfoResponse) -> tuple[str, ...]:
    """Those that verify speaks, best first."""
    return tuple(message.transports)


def encode_attach(
    identity: Identity,
    proposers: Sequence[Proposer],
    token: str,
    transports: Sequence[str],
    share: float | None,
    unfit: Mapping[str, str] = NO_MISFITS,
) -> draft_pb2.AttachRequest:
    """`unfit` are the reasons of proposers that do not fit, by name."""
    fingerprints = [p.tokenizer_fingerprint for p in proposers if p.tokenizer_fingerprint]
    return draft_pb2.AttachRequest(
        min_version=PROTOCOL_VERSION,
        max_version=PROTOCOL_VERSION,
        token=token,
        proposers=[encode_offer(proposer) for proposer in proposers],
        tokenizer_fingerprint=next(iter(fingerprints), ""),
        vocab_size=max((p.vocab_size for p in proposers), default=0),
        transports=transports,
        name=identity.name,
        address=identity.address,
        process_id=identity.process_id,
        share=share,
        device=identity.placement.device,
        gpu_uuid=identity.placement.gpu_uuid,
        unfit=[draft_pb2.UnfitProposer(name=name, reason=reason[:MAX_MISFIT]) for name, reason in unfit.items()],
        mps=identity.placement.mps,
    )


def decode_attachment(message: draft_pb2.AttachResponse, transports: Sequence[str]) -> AttachGrant:
    """Raises FailedPreconditionError when verify chose a version or transport that was not offered."""
    transport = message.transport or "grpc"
    if message.version != PROTOCOL_VERSION or transport not in transports:
        raise FailedPreconditionError(
            f"verify chose version {message.version} and transport {message.transport!r}, which were not offered"
        )
    memory = _decode_memory(message.shared_memory) if message.HasField("shared_memory") else None
    ring = message.device_ring
    address = DeviceRingAddress(ring.handle, ring.size, ring.gpu_uuid) if message.HasField("device_ring") else None
    deadline, reason = message.deadline_us / 1e6 or inf, message.transport_reason
    queue = None
    if message.HasField("device_queue"):
        given = message.device_queue
        queue = DeviceQueueAddress(given.handle, given.size, given.gpu_uuid, given.rows)
    return AttachGrant(message.epoch, message.num_slots, transport, memory, address, reason, deadline, queue)


def _decode_memory(message: draft_pb2.SharedMemory) -> SharedMemoryAddress:
    to_draft, to_verify = (RingAddress(ring.path, ring.size) for ring in (message.to_draft, message.to_verify))
    return SharedMemoryAddress(to_draft, to_verify, message.nonce)


def exchange_metadata(attachment: AttachGrant, transport: str, reason: str) -> tuple[tuple[str, str], ...]:
    """Metadata of Exchange: which attachment, by which transport, and why not by the best one."""
    metadata = (("slipstream-epoch", str(attachment.epoch)), ("slipstream-transport", transport))
    printable = "".join(char if " " <= char <= "~" else "?" for char in reason[:MAX_REASON])
    return (*metadata, ("slipstream-transport-reason", printable)) if printable else metadata


def decode_command_bytes(data: bytes) -> list[Record]:
    """The records of one message from a ring. UnavailableError if it is none."""
    try:
        return decode_commands(draft_pb2.ExchangeResponse.FromString(data))
    except DecodeError as error:
        raise UnavailableError(f"not an ExchangeResponse: {error}") from error


def decode_commands_and_follow(data: bytes) -> tuple[list[Record], Follow | None]:
    """The same, and the last pass that the message tells of."""
    try:
        message = draft_pb2.ExchangeResponse.FromString(data)
    except DecodeError as error:
        raise UnavailableError(f"not an ExchangeResponse: {error}") from error
    follows = [command.follow for command in message.commands if command.HasField("follow")]
    return decode_commands(message), _decode_follow(follows[-1]) if follows else None


def _decode_follow(message: draft_pb2.Follow) -> Follow:
    values = [
        EnqueueRequest(
            _decode_stamp(state.stamp), row, state.tokens, state.offset // 2, state.max_nodes, state.max_depth
        )
        for row, state in enumerate(message.states)
    ]
    return Follow(message.number, values)


def decode_commands(message: draft_pb2.ExchangeResponse) -> list[Record]:
    """The records this service understands, in order; unknown kinds carry nothing for it.

    States on verify's GPU are only named. UnavailableError for states that are no bfloat16 matrix, with a row for each
    token of a Commit.
    """
    records: list[Record] = []
    for command in message.commands:
        kind = command.WhichOneof("kind")
        if kind == "commit":
            records.append(_decode_commit(command.commit))
        elif kind == "extend":
            extend = command.extend
            rows = _decode_rows(extend)
            states = None if rows else _decode_states(extend.features)
            records.append(Extend(_decode_stamp(extend.stamp), extend.first_position, states, rows))
        elif kind == "open":
            records.append(_decode_open(command.open))
        elif kind == "close":
            records.append(Close(_decode_stamp(command.close.stamp)))
        elif kind == "gap":
            records.append(Gap(_decode_stamp(command.gap.stamp), command.gap.dropped))
    return records


def encode_replies(replies: Iterable[Reply]) -> draft_pb2.ExchangeRequest:
    """Trees are filled in one after the other in a message that is kept for it.

    One made anew takes memory of its own for each part, and once protobuf has freed ten thousand pieces no thread of
    Python runs for milliseconds.
    """
    message = draft_pb2.ExchangeRequest()
    kept = draft_pb2.DraftReply()
    for reply in replies:
        if isinstance(reply, TrafficWeight):
            message.share = reply.share
        elif isinstance(reply, TreeReply):
            _fill_tree(kept.tree, reply)
            message.replies.append(kept)
        else:
            _fill_reply(message.replies.add(), reply)
    return message


def encode_offer(proposer: Proposer) -> draft_pb2.ProposerOffer:
    return draft_pb2.ProposerOffer(
        name=proposer.name,
        feature_boundaries=proposer.feature_boundaries,
        max_nodes=proposer.max_nodes,
        max_depth=proposer.max_depth,
        needs_states=proposer.needs_states,
        device=proposer.device,
        own_text_only=proposer.own_text_only,
        follows=proposer.follows,
        round_costs=[draft_pb2.RoundCost(**cost._asdict()) for cost in proposer.round_costs],
    )


def _decode_stamp(stamp: tree_pb2.Stamp) -> Stamp:
    return Stamp(stamp.epoch, stamp.slot, stamp.generation, stamp.base_length, stamp.root_token)


def _fill_stamp(message: tree_pb2.Stamp, stamp: Stamp) -> None:
    message.epoch, message.slot, message.generation, message.base_length, message.root_token = stamp


def _decode_commit(message: draft_pb2.Commit) -> Commit[torch.Tensor]:
    states = _decode_states(message.features) if message.HasField("features") else None
    rows = _decode_rows(message)
    count = len(states) if states is not None else rows.rows if rows else len(message.token_ids)
    if count != len(message.token_ids):
        raise UnavailableError(f"{count} rows of states for {len(message.token_ids)} tokens")
    return Commit(
        _decode_stamp(message.stamp),
        message.token_ids[:],
        message.max_nodes,
        message.max_depth,
        states,
        rows,
        message.handed,
    )


def _decode_rows(message: draft_pb2.Commit | draft_pb2.Extend) -> DeviceRows | None:
    rows = message.device_rows
    return DeviceRows(rows.position, rows.rows, rows.row_bytes) if message.HasField("device_rows") else None


def _decode_states(message: tensor_pb2.Tensor) -> torch.Tensor:
    if message.data_type != tensor_pb2.DATA_TYPE_BFLOAT16:
        raise UnavailableError(f"states of data type {message.data_type}")
    return bfloat16_rows(message.shape, message.data)


def _decode_open(message: draft_pb2.Open) -> Open:
    opening = Opening(
        token_ids=message.token_ids[:],
        prompt_length=message.prompt_length,
        sampling=_decode_sampling(message.sampling, message.choice_index),
        tenant=message.tenant,
        adapter_id=message.adapter_id,
        cached_length=message.cached_length,
    )
    stamp, named = _decode_stamp(message.stamp), message.request_id if is_request_id(message.request_id) else ""
    return Open(stamp, message.proposer, opening, message.max_nodes, message.max_depth, named)


def _decode_sampling(message: sampling_pb2.SamplingParams, choice: int) -> Sampling:
    default = Sampling()
    has = message.HasField
    return Sampling(
        temperature=message.temperature if has("temperature") else default.temperature,
        top_k=message.top_k,
        top_p=message.top_p if has("top_p") else default.top_p,
        min_p=message.min_p,
        seed=message.seed,
        choice=choice,
        repetition_penalty=message.repetition_penalty if has("repetition_penalty") else default.repetition_penalty,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        logit_bias=dict(message.logit_bias),
        min_tokens=message.min_tokens,
        stop_token_ids=tuple(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
    )


def _sendable(reason: str) -> str:
    """The beginning, without what UTF-8 cannot express."""
    return reason[:MAX_REASON].encode(errors="replace").decode()


def _fill_reply(message: draft_pb2.DraftReply, reply: Resume | Nack) -> None:
    """Set in place: what is handed over as arguments is copied once more."""
    match reply:
        case Resume(have_length=have_length):
            _fill_stamp(message.resume.stamp, reply.stamp)
            message.resume.have_length = have_length
        case Nack(reason=reason):
            _fill_stamp(message.nack.stamp, reply.stamp)
            message.nack.reason = _sendable(reason)


def _fill_tree(message: tree_pb2.TokenTree, reply: TreeReply) -> None:
    _fill_stamp(message.stamp, reply.stamp)
    message.token_ids[:] = reply.tree.token_ids
    message.parents[:] = reply.tree.parents
    message.log_probs[:] = reply.tree.log_probs or ()
    message.sources[:] = reply.sources
