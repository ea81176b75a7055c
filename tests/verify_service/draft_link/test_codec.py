"""Whatever bytes or records a drafter sends, the worst is the domain error, and no other attachment is hurt."""

from __future__ import annotations

import contextlib
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.generation_types import FinishReason
from slipstream.rpc.errors import InvalidArgumentError
from slipstream.v1 import draft_pb2, tree_pb2
from slipstream_kernels.draft_protocol.records import Commit, Gap, Nack, Resume, Stamp, TreeReply
from slipstream_kernels.token_tree import MAX_ROWS, TokenTree
from verify_service.core.draft_source import Committed, RequestOpening
from verify_service.core.request import RequestKey, SamplingParams
from verify_service.draft_link.attachment import Attachment
from verify_service.draft_link.codec import (
    BYTES_PER_REPLY,
    REPLIES_PER_SLOT,
    decode_attach,
    decode_replies,
    encode_commands,
    encode_link_info,
)
from verify_service.draft_link.draft_link import DraftLink
from verify_service.draft_link.link_config import LinkConfig
from verify_service.draft_link.records import AttachRequest, Close, LinkFacts, Offer

FACTS = LinkFacts("model", "tokenizer", 50, 128, 2, 512, 64)
STAMP = Stamp(2**63, 3, 2**40, 17, 9)
HOSTILE, HONEST = RequestKey(1, 1), RequestKey(1, 2)

uint32 = st.integers(0, 2**32 - 1)
small = st.integers(0, 6)
stamps = st.builds(
    tree_pb2.Stamp,
    epoch=st.integers(0, 2**64 - 1) | small,
    slot=uint32 | small,
    generation=st.integers(0, 2**64 - 1) | small,
    base_length=uint32 | small,
    root_token=uint32 | small,
)
trees = st.builds(
    tree_pb2.TokenTree,
    token_ids=st.lists(uint32 | st.integers(0, 60), max_size=70),
    parents=st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(-2, 9), max_size=70),
    log_probs=st.lists(st.floats(width=32), max_size=5),
    sources=st.lists(uint32 | st.integers(0, 2), max_size=5),
)


def link_with_two_drafters() -> tuple[DraftLink, Attachment, Attachment]:
    """One request each, both waiting for a tree; the first drafter is the one to misbehave."""
    link = DraftLink(FACTS, LinkConfig(deadline=0.0), epochs=count(4))
    attachments = []
    for name, key in (("hostile", HOSTILE), ("honest", HONEST)):
        offers = (Offer(name, 8, 4), Offer(f"{name}-2", 8, 4))
        request = AttachRequest(1, 1, "", offers, "tokenizer", 50, ("grpc",), name, "", 1)
        attachments.append(link.start(link.attach(request, loopback=True).epoch, lambda: None))
        link.begin(RequestOpening(key, name, (1, 2, 3), 2, SamplingParams(), 0, "", "", 0))
    link.commit([Committed(key, (4,), 4, 8, 4) for key in (HOSTILE, HONEST)])
    return link, attachments[0], attachments[1]


def current_stamp(attachment: Attachment) -> tree_pb2.Stamp:
    stamp = attachment.slots.taken()[0].stamp
    return tree_pb2.Stamp(
        epoch=stamp.epoch,
        slot=stamp.slot,
        generation=stamp.generation,
        base_length=stamp.base_length,
        root_token=stamp.root_token,
    )


def deliver(link: DraftLink, attachment: Attachment, data: bytes) -> None:
    """What the servicer does with a message."""
    try:
        link.receive(attachment, decode_replies(data, attachment.slots.size), len(data))
    except InvalidArgumentError as error:
        link.drop(attachment, error)


def assert_harmless(link: DraftLink, honest: Attachment) -> None:
    """A tree that the loop is given keeps to the contract, and the other drafter works as before."""
    (tree,) = link.collect([HOSTILE])
    if tree is not None:
        tree.validate(vocab_size=50, max_nodes=7, max_depth=4)
    good = draft_pb2.DraftReply(tree=tree_pb2.TokenTree(stamp=current_stamp(honest), token_ids=[7], parents=[-1]))
    deliver(link, honest, draft_pb2.ExchangeRequest(replies=[good]).SerializeToString())
    assert link.collect([HONEST]) == [TokenTree.chain([7])]
    link.commit([Committed(key, (5,), 5, 8, 4) for key in (HOSTILE, HONEST)])
    assert link.collect([HOSTILE, HONEST]) == [None, None]
    link.end(HOSTILE, FinishReason.STOP)
    assert honest.live


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_random_bytes(data: bytes) -> None:
    link, hostile, honest = link_with_two_drafters()
    deliver(link, hostile, data)
    assert_harmless(link, honest)


@settings(max_examples=300)
@given(st.data())
def test_random_records(data: st.DataObject) -> None:
    link, hostile, honest = link_with_two_drafters()
    for _ in range(data.draw(st.integers(1, 4))):
        stamp = data.draw(stamps | st.sampled_from([current_stamp(hostile), current_stamp(honest)]))
        kind = data.draw(st.sampled_from(["tree", "tree", "tree", "resume", "nack", "none"]))
        reply = draft_pb2.DraftReply()
        if kind == "tree":
            reply.tree.CopyFrom(data.draw(trees))
        elif kind == "resume":
            reply.resume.have_length = data.draw(uint32)
        elif kind == "nack":
            reply.nack.reason = data.draw(st.text(max_size=20))
        if kind != "none" and data.draw(st.booleans()) | data.draw(st.booleans()):
            getattr(reply, kind).stamp.CopyFrom(stamp)
        deliver(link, hostile, draft_pb2.ExchangeRequest(replies=[reply]).SerializeToString())
        if not hostile.live:
            break
    assert_harmless(link, honest)


@settings(max_examples=200)
@given(st.data())
def test_damaged_messages(data: st.DataObject) -> None:
    link, hostile, honest = link_with_two_drafters()
    fields = {"token_ids": [1, 2, 3], "parents": [-1, 0, 0], "log_probs": [0.0] * 3}
    tree = tree_pb2.TokenTree(stamp=current_stamp(hostile), **fields)
    reply = draft_pb2.DraftReply(tree=tree)
    message = bytearray(draft_pb2.ExchangeRequest(replies=[reply]).SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    deliver(link, hostile, bytes(message[: data.draw(st.integers(0, len(message)))]))
    assert_harmless(link, honest)


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_random_attach_requests(data: bytes) -> None:
    with contextlib.suppress(InvalidArgumentError):
        assert isinstance(decode_attach(data), AttachRequest)


def test_replies_are_read_as_sent() -> None:
    stamp = tree_pb2.Stamp(epoch=2**63, slot=3, generation=2**40, base_length=17, root_token=9)
    message = draft_pb2.ExchangeRequest(
        replies=[
            draft_pb2.DraftReply(
                tree=tree_pb2.TokenTree(
                    stamp=stamp, token_ids=[5, 6], parents=[-1, 0], log_probs=[-0.5, -1.0], sources=[0, 1]
                )
            ),
            draft_pb2.DraftReply(resume=draft_pb2.Resume(stamp=stamp, have_length=4)),
            draft_pb2.DraftReply(nack=draft_pb2.Nack(stamp=stamp, reason="no")),
        ]
    )
    assert decode_replies(message.SerializeToString(), 1) == [
        TreeReply(STAMP, TokenTree((5, 6), (-1, 0), (-0.5, -1.0)), (0, 1)),
        Resume(STAMP, 4),
        Nack(STAMP, "no"),
    ]


def stale_resumes(count: int) -> bytes:
    """Resumes of nothing, 6 bytes each."""
    resume = draft_pb2.DraftReply(resume=draft_pb2.Resume(stamp=tree_pb2.Stamp()))
    return draft_pb2.ExchangeRequest(replies=[resume] * count).SerializeToString()


def test_a_message_holds_so_many_replies_for_each_slot() -> None:
    assert len(decode_replies(stale_resumes(REPLIES_PER_SLOT * 5), 5)) == REPLIES_PER_SLOT * 5
    with pytest.raises(InvalidArgumentError, match="21 replies, the limit with 5 slots is 20"):
        decode_replies(stale_resumes(REPLIES_PER_SLOT * 5 + 1), 5)


def test_a_message_beyond_its_bytes_is_not_parsed() -> None:
    most = REPLIES_PER_SLOT * 5 * BYTES_PER_REPLY
    with pytest.raises(InvalidArgumentError, match=f"{most + 1} bytes, the limit with 5 slots is {most}"):
        decode_replies(b"\xff" * (most + 1), 5)


@pytest.mark.parametrize("field", ["token_ids", "parents", "log_probs", "sources"])
def test_a_tree_larger_than_any_is_not_copied_whatever_its_stamp(field: str) -> None:
    def message(size: int) -> bytes:
        tree = tree_pb2.TokenTree(stamp=tree_pb2.Stamp(epoch=1), **{field: [1] * size})
        return draft_pb2.ExchangeRequest(replies=[draft_pb2.DraftReply(tree=tree)]).SerializeToString()

    assert len(decode_replies(message(MAX_ROWS - 1), 4)) == 1
    with pytest.raises(InvalidArgumentError, match="none has more than 63"):
        decode_replies(message(MAX_ROWS), 4)


def test_an_attach_request_has_a_limit() -> None:
    data = draft_pb2.AttachRequest(transports=["grpc"] * 100_000).SerializeToString()
    with pytest.raises(InvalidArgumentError, match="the limit is 65536"):
        decode_attach(data)


def test_modes_of_older_drafters_are_known_and_no_others() -> None:
    asks = [decode_attach(draft_pb2.AttachRequest(mode=mode).SerializeToString()).asks_ahead for mode in range(4)]
    assert asks == [False, False, True, True]
    with pytest.raises(InvalidArgumentError, match="mode 4 is unknown"):
        decode_attach(draft_pb2.AttachRequest(mode=4).SerializeToString())


def test_what_rounds_take_is_read_as_sent_and_unknown_of_older_drafters() -> None:
    costs = [draft_pb2.RoundCost(requests=4, levels=5, seconds=0.1)]
    offers = [draft_pb2.ProposerOffer(name="old"), draft_pb2.ProposerOffer(name="new", round_costs=costs)]
    read = decode_attach(draft_pb2.AttachRequest(proposers=offers).SerializeToString()).offers
    assert [offer.round_costs for offer in read] == [(), ((4, 5, 0.1),)]


def test_replies_of_the_largest_trees_keep_within_the_bytes() -> None:
    most = 2**32 - 1
    stamp = tree_pb2.Stamp(epoch=2**64 - 1, slot=most, generation=2**64 - 1, base_length=most, root_token=most)
    tree = tree_pb2.TokenTree(
        stamp=stamp, token_ids=[most] * 63, parents=[-1] * 63, log_probs=[-1.5] * 63, sources=[31] * 63,
    )  # fmt: skip
    replies = [draft_pb2.DraftReply(tree=tree)] * REPLIES_PER_SLOT
    assert len(decode_replies(draft_pb2.ExchangeRequest(replies=replies).SerializeToString(), 1)) == REPLIES_PER_SLOT


def test_a_message_opens_a_slot_again_only_once() -> None:
    link, hostile, honest = link_with_two_drafters()
    (slot,) = hostile.slots.taken()
    replies = []
    for _ in range(8):
        replies.append(draft_pb2.DraftReply(resume=draft_pb2.Resume(stamp=current_stamp(hostile))))
        replies[-1].resume.stamp.generation += len(replies) - 1
    before = slot.stamp.generation
    deliver(link, hostile, draft_pb2.ExchangeRequest(replies=replies).SerializeToString())
    assert (slot.stamp.generation, link.state().stale) == (before + 1, 7)
    assert_harmless(link, honest)


def test_a_slot_is_refused_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    link, hostile, _ = link_with_two_drafters()
    nack = draft_pb2.DraftReply(nack=draft_pb2.Nack(stamp=current_stamp(hostile), reason="no\n" * 1000))
    deliver(link, hostile, draft_pb2.ExchangeRequest(replies=[nack] * 5).SerializeToString())
    (line,) = [record.getMessage() for record in caplog.records if "will get no trees" in record.getMessage()]
    assert len(line) < 400
    assert "\n" not in line


def test_a_request_refused_after_every_resume_is_explained_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    link, hostile, _ = link_with_two_drafters()
    for _ in range(10):
        resume = draft_pb2.DraftReply(resume=draft_pb2.Resume(stamp=current_stamp(hostile)))
        deliver(link, hostile, draft_pb2.ExchangeRequest(replies=[resume]).SerializeToString())
        nack = draft_pb2.DraftReply(nack=draft_pb2.Nack(stamp=current_stamp(hostile), reason="no"))
        deliver(link, hostile, draft_pb2.ExchangeRequest(replies=[nack]).SerializeToString())
    assert sum("will get no trees" in record.getMessage() for record in caplog.records) == 1


def test_an_answer_to_a_state_that_never_was_shows_nothing() -> None:
    link, hostile, honest = link_with_two_drafters()
    (slot,) = hostile.slots.taken()
    tree = tree_pb2.TokenTree(stamp=current_stamp(hostile))
    tree.stamp.base_length += 1
    deliver(link, hostile, draft_pb2.ExchangeRequest(replies=[draft_pb2.DraftReply(tree=tree)]).SerializeToString())
    assert slot.session.acked_length == 0
    assert_harmless(link, honest)


@pytest.mark.parametrize(
    ("record", "kind", "field", "value"),
    [
        (Commit(STAMP, (1, 2), 8, 4), "commit", "token_ids", [1, 2]),
        (Close(STAMP, FinishReason.CANCELLED), "close", "reason", 3),
        (Gap(STAMP, 12), "gap", "dropped", 12),
    ],
)
def test_commands_carry_stamp_and_content(record: Any, kind: str, field: str, value: Any) -> None:
    message = draft_pb2.ExchangeResponse.FromString(encode_commands([record]))
    (command,) = message.commands
    assert command.WhichOneof("kind") == kind
    body = getattr(command, kind)
    stamp = body.stamp
    assert Stamp(stamp.epoch, stamp.slot, stamp.generation, stamp.base_length, stamp.root_token) == STAMP
    found = getattr(body, field)
    assert (list(found) if kind == "commit" else found) == value


def test_link_info_states_versions_and_transports() -> None:
    info = draft_pb2.DraftLinkServiceGetInfoResponse.FromString(encode_link_info(FACTS, ["shm", "grpc"]))
    assert (info.min_version, info.max_version, list(info.transports)) == (1, 1, ["shm", "grpc"])
    assert (info.vocab_size, info.tokenizer_fingerprint, list(info.feature_boundaries)) == (50, "tokenizer", [])
