"""Protobuf messages of DraftLinkService to and from this service's own types. No message object leaves this module."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from google.protobuf.message import DecodeError

from slipstream.generation_codec import FINISH_NUMBERS
from slipstream.generation_types import FinishReason
from slipstream.rpc.errors import InvalidArgumentError
from slipstream.v1 import draft_pb2, sampling_pb2, tensor_pb2, tree_pb2
from slipstream_kernels.draft_protocol.follow import Follow
from slipstream_kernels.draft_protocol.records import (
    Commit,
    Extend,
    Gap,
    Nack,
    Reply,
    Resume,
    RingAddress,
    RoundCost,
    Stamp,
    TrafficWeight,
    TreeReply,
)
from slipstream_kernels.draft_protocol.tree_wire import TreeReader
from slipstream_kernels.models.capture_layers import Bits
from slipstream_kernels.token_tree import MAX_ROWS, TokenTree
from verify_service.core.sampling_codec import encode_sampling
from verify_service.draft_link.attachment import MAX_NAME, MAX_VERSION, MIN_VERSION
from verify_service.draft_link.records import (
    AttachReply,
    AttachRequest,
    Close,
    Command,
    LinkFacts,
    Offer,
    Open,
    Unfit,
)

_ASKS_AHEAD = {
    draft_pb2.DRAFT_MODE_UNSPECIFIED: False,
    draft_pb2.DRAFT_MODE_LOCKSTEP: False,
    draft_pb2.DRAFT_MODE_AHEAD: True,
    draft_pb2.DRAFT_MODE_AHEAD_OR_WAIT: True,
}
REPLIES_PER_SLOT = 4
"""Replies of one message, for each slot of the attachment. One pass of a drafter makes one a slot."""
BYTES_PER_REPLY = 2048
"""Bytes of one message, for each reply it may hold. The largest tree with everything set takes some 1600."""
MAX_ATTACH_BYTES = 1 << 16
"""Bytes of the largest AttachRequest, which is read before its sender is known."""


def message_limit(num_slots: int) -> int:
    """Bytes of the largest ExchangeRequest of an attachment with so many slots."""
    return REPLIES_PER_SLOT * num_slots * BYTES_PER_REPLY


def encode_link_info(facts: LinkFacts, transports: Sequence[str]) -> bytes:
    """A DraftLinkServiceGetInfoResponse; transports are in order of preference."""
    return draft_pb2.DraftLinkServiceGetInfoResponse(
        min_version=MIN_VERSION,
        max_version=MAX_VERSION,
        model_fingerprint=facts.model_fingerprint,
        tokenizer_fingerprint=facts.tokenizer_fingerprint,
        vocab_size=facts.vocab_size,
        hidden_size=facts.hidden_size,
        num_layers=facts.num_layers,
        max_context=facts.max_context,
        max_nodes=facts.max_nodes,
        transports=transports,
        feature_boundaries=facts.feature_boundaries,
    ).SerializeToString()


def decode_attach(data: bytes) -> AttachRequest:
    """InvalidArgumentError if the bytes are no AttachRequest, too many, or a text is too long."""
    if len(data) > MAX_ATTACH_BYTES:
        raise InvalidArgumentError(f"an AttachRequest of {len(data)} bytes, the limit is {MAX_ATTACH_BYTES}")
    message = _parse(draft_pb2.AttachRequest, data)
    for field in ("name", "address", "token", "tokenizer_fingerprint", "device", "gpu_uuid"):
        if len(getattr(message, field)) > MAX_NAME:
            raise InvalidArgumentError(f"{field} must be at most {MAX_NAME} characters", field=field)
    return AttachRequest(
        min_version=message.min_version,
        max_version=message.max_version,
        token=message.token,
        offers=tuple(map(_offer, message.proposers)),
        tokenizer_fingerprint=message.tokenizer_fingerprint,
        vocab_size=message.vocab_size,
        transports=tuple(message.transports),
        name=message.name,
        address=message.address,
        process_id=message.process_id,
        share=message.share if message.HasField("share") else None,
        asks_ahead=_asks_ahead(message.mode),
        device=message.device,
        gpu_uuid=message.gpu_uuid,
        unfit=tuple(Unfit(each.name, each.reason) for each in message.unfit),
        mps=message.mps,
    )


def _asks_ahead(value: draft_pb2.DraftMode) -> bool:
    try:
        return _ASKS_AHEAD[value]
    except KeyError:
        raise InvalidArgumentError(f"mode {value} is unknown", field="mode") from None


def _offer(message: draft_pb2.ProposerOffer) -> Offer:
    boundaries = tuple(message.feature_boundaries)
    if len(message.device) > MAX_NAME:
        raise InvalidArgumentError(f"device must be at most {MAX_NAME} characters", field="proposers.device")
    return Offer(
        message.name,
        message.max_nodes,
        message.max_depth,
        boundaries,
        message.needs_states,
        message.device,
        message.own_text_only,
        message.follows,
        tuple(RoundCost(each.requests, each.levels, each.seconds) for each in message.round_costs),
    )


def encode_attached(reply: AttachReply) -> bytes:
    """An AttachResponse."""
    return draft_pb2.AttachResponse(
        version=reply.version,
        epoch=reply.epoch,
        transport=reply.transport,
        num_slots=reply.num_slots,
        deadline_us=reply.deadline_us,
        transport_reason=reply.transport_reason,
        device_ring=None
        if reply.device_ring is None
        else draft_pb2.DeviceRing(
            handle=reply.device_ring.handle, size=reply.device_ring.size, gpu_uuid=reply.device_ring.gpu_uuid
        ),
        shared_memory=None
        if reply.shared_memory is None
        else draft_pb2.SharedMemory(
            to_draft=_ring(reply.shared_memory.to_draft),
            to_verify=_ring(reply.shared_memory.to_verify),
            nonce=reply.shared_memory.nonce,
        ),
        device_queue=None if reply.device_queue is None else draft_pb2.DeviceQueue(**asdict(reply.device_queue)),
    ).SerializeToString()


def _ring(address: RingAddress) -> draft_pb2.SharedRing:
    return draft_pb2.SharedRing(path=address.path, size=address.size)


def decode_replies(data: bytes, num_slots: int, reader: TreeReader | None = None) -> list[Reply]:
    """The records of one ExchangeRequest, copied; stamps and trees are not checked yet.

    With a `reader` those of a message of trees alone are read by it, the same but sooner, and their lists are checked.

    InvalidArgumentError if the message is larger than an attachment of `num_slots` slots may send, the bytes are no
    ExchangeRequest, or a record is empty, has no stamp, a tree larger than any, or a log_prob that is not finite.
    """
    most = REPLIES_PER_SLOT * num_slots
    if len(data) > message_limit(num_slots):
        raise InvalidArgumentError(
            f"a message of {len(data)} bytes, the limit with {num_slots} slots is {message_limit(num_slots)}"
        )
    trees = None if reader is None else reader.read(data)
    if trees is not None and len(trees) <= most:
        return [TreeReply(Stamp(*stamp), tree) for stamp, tree in trees]
    message = _parse(draft_pb2.ExchangeRequest, data)
    replies = message.replies
    if len(replies) > most:
        raise InvalidArgumentError(
            f"a message of {len(replies)} replies, the limit with {num_slots} slots is {most}", field="replies"
        )
    share = [TrafficWeight(message.share)] if message.HasField("share") else []
    return [*map(_reply, replies), *share]


def _reply(message: draft_pb2.DraftReply) -> Reply:
    match message.WhichOneof("kind"):
        case "tree":
            return _tree(message.tree)
        case "resume":
            return Resume(_stamp(message.resume), message.resume.have_length)
        case "nack":
            return Nack(_stamp(message.nack), message.nack.reason)
        case _:
            raise InvalidArgumentError("a reply must hold tree, resume or nack", field="replies.kind")


def _tree(message: tree_pb2.TokenTree) -> TreeReply:
    longest = max(len(message.token_ids), len(message.parents), len(message.log_probs), len(message.sources))
    if longest >= MAX_ROWS:
        raise InvalidArgumentError(f"a tree of {longest} nodes, none has more than {MAX_ROWS - 1}", field="tree")
    log_probs = tuple(message.log_probs[:])
    if not all(map(math.isfinite, log_probs)):
        raise InvalidArgumentError("log_probs must be finite", field="tree.log_probs")
    tree = TokenTree(tuple(message.token_ids[:]), tuple(message.parents[:]), log_probs or None)
    return TreeReply(_stamp(message), tree, tuple(message.sources[:]))


def _stamp(message: tree_pb2.TokenTree | draft_pb2.Resume | draft_pb2.Nack) -> Stamp:
    if not message.HasField("stamp"):
        raise InvalidArgumentError("a reply must carry a stamp", field="stamp")
    stamp = message.stamp
    return Stamp(stamp.epoch, stamp.slot, stamp.generation, stamp.base_length, stamp.root_token)


def encode_commands(commands: Sequence[Command]) -> bytes:
    """An ExchangeResponse.

    Commits are filled in one after the other in messages that are kept for it: one made anew takes memory of its own
    for each part, and once protobuf has freed ten thousand pieces no thread of Python runs for milliseconds.
    """
    message = draft_pb2.ExchangeResponse()
    with_rows, without_rows = draft_pb2.DraftCommand(), draft_pb2.DraftCommand()
    for record in commands:
        if isinstance(record, Commit) and record.hidden_states is None:
            command = without_rows if record.device_rows is None else with_rows
            _fill_commit(command.commit, record)
            message.commands.append(command)
        else:
            _fill_command(message.commands.add(), record)
    return message.SerializeToString()


def _fill_command(message: draft_pb2.DraftCommand, record: Command) -> None:
    """Set in place: what is handed over as arguments is copied once more."""
    match record:
        case Commit():
            _fill_commit(message.commit, record)
        case Extend():
            _fill_stamp(message.extend.stamp, record.stamp)
            message.extend.first_position = record.first_position
            _fill_states(message.extend, record)
        case Open():
            _fill_stamp(message.open.stamp, record.stamp)
            _fill_open(message.open, record)
        case Close():
            _fill_stamp(message.close.stamp, record.stamp)
            message.close.reason = _finish_reason(record.reason)
        case Gap():
            _fill_stamp(message.gap.stamp, record.stamp)
            message.gap.dropped = record.dropped
        case Follow():
            _fill_follow(message.follow, record)


def _fill_follow(message: draft_pb2.Follow, record: Follow) -> None:
    message.number = record.number
    state = draft_pb2.FollowedState()
    for stamp, _, rows, place, max_nodes, max_depth in record.values:
        _fill_stamp(state.stamp, stamp)
        state.tokens, state.offset, state.max_nodes, state.max_depth = rows, 2 * place, max_nodes, max_depth
        message.states.append(state)


def _fill_stamp(message: tree_pb2.Stamp, stamp: Stamp) -> None:
    message.epoch, message.slot, message.generation, message.base_length, message.root_token = stamp


def _fill_commit(message: draft_pb2.Commit, record: Commit[Bits]) -> None:
    _fill_stamp(message.stamp, record.stamp)
    message.token_ids[:] = record.token_ids
    message.max_nodes, message.max_depth = record.max_nodes, record.max_depth
    message.handed = record.handed
    _fill_states(message, record)


def _fill_states(message: draft_pb2.Commit | draft_pb2.Extend, record: Commit[Bits] | Extend[Bits]) -> None:
    if record.hidden_states is not None:
        _fill_tensor(message.features, record.hidden_states)
    if record.device_rows is not None:
        rows = message.device_rows
        rows.position, rows.rows, rows.row_bytes = record.device_rows[:3]


def _fill_tensor(message: tensor_pb2.Tensor, states: Bits) -> None:
    assert states.ndim == 2
    message.data_type = tensor_pb2.DATA_TYPE_BFLOAT16
    message.shape.extend(states.shape)
    message.data = states.astype("<u2", copy=False).tobytes()


def _fill_open(message: draft_pb2.Open, record: Open) -> None:
    message.proposer = record.proposer
    message.token_ids.extend(record.token_ids)
    message.prompt_length = record.prompt_length
    message.sampling.CopyFrom(encode_sampling(record.sampling))
    message.choice_index = record.choice_index
    message.tenant, message.adapter_id = record.tenant, record.adapter_id
    message.cached_length = record.cached_length
    message.max_nodes, message.max_depth = record.max_nodes, record.max_depth
    message.request_id = record.request_id


def _finish_reason(reason: FinishReason | None) -> sampling_pb2.FinishReason:
    return sampling_pb2.FINISH_REASON_UNSPECIFIED if reason is None else FINISH_NUMBERS[reason]


def _parse(kind: Any, data: bytes) -> Any:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise InvalidArgumentError(f"not a {kind.DESCRIPTOR.name}: {error}") from error
