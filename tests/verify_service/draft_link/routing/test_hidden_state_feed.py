"""States on their way to drafters: each position once, in order, whatever comes between.

The test plays the loop and reads what the link sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from slipstream.rpc.errors import ResourceExhaustedError
from slipstream.v1 import draft_pb2, tensor_pb2
from slipstream_kernels.draft_protocol.records import Extend, Resume, Stamp, TreeReply
from slipstream_kernels.token_tree import TokenTree
from support.fed_drafter import FACTS, HIDDEN, KEY, ROW, Kept, Peer, states
from verify_service.core.draft_source import Committed, RequestOpening, StateChunk
from verify_service.core.request import RequestKey, SamplingParams
from verify_service.draft_link.codec import encode_commands
from verify_service.draft_link.draft_link import DraftLink
from verify_service.draft_link.link_config import LinkConfig
from verify_service.draft_link.records import Close, Offer
from verify_service.draft_link.routing import commit_batch
from verify_service.draft_link.routing import hidden_state_feed as feature_feed


def bound(monkeypatch: pytest.MonkeyPatch, **most: int) -> None:
    """Set how many bytes of states a `record`, a `message` or a `step` has, however few requests run."""
    if "step" in most:
        most = most | {"alone": most["step"]}
    for name, size in most.items():
        monkeypatch.setattr(commit_batch if name == "message" else feature_feed, f"{name.upper()}_BYTES", size)


OFFER = Offer("p", 8, 4, (3, 1))


def link_of(**config: Any) -> DraftLink:
    return DraftLink(FACTS, LinkConfig(**({"transports": ("grpc",)} | config)))


def opening(length: int, computed: int = 0, kept: int | None = None) -> RequestOpening:
    history = None if kept is None else Kept(kept)
    tokens = tuple(range(length))
    return RequestOpening(KEY, "p", tokens, length, SamplingParams(seed=1), 0, "", "", computed, history)


def extend(link: DraftLink, first: int, end: int, **options: Any) -> None:
    link.send_states([StateChunk(KEY, states(first, end, **options))])


def commit(link: DraftLink, length: int, count: int = 1, features: bool = True, max_nodes: int = 8) -> None:
    """A step after which a request has `length` tokens, `count` of them new."""
    tokens = tuple(range(length - count, length))
    rows = states(length - count - 1, length - 1) if features else None
    link.commit([Committed(KEY, tokens, length, max_nodes, 4, rows)])


def test_a_request_from_its_start() -> None:
    link = link_of()
    peer = Peer(link, OFFER)
    assert link.wanted_boundaries() == (1, 3)
    link.begin(opening(10))
    assert peer.read() == ["Open"]
    extend(link, 0, 6)
    extend(link, 6, 9)
    commit(link, 11)
    commit(link, 14, count=3)
    assert peer.read() == ["Extend", "Extend", "Commit", "Commit"]
    assert peer.has == (0, 13) and peer.tokens == list(range(14))


@pytest.mark.parametrize(("kept", "first"), [(0, 0), (5, 5), (8, 8), (99, 8), (None, 8)])
def test_a_prefix_hit_brings_what_is_kept_of_it(kept: int | None, first: int) -> None:
    link = link_of()
    peer = Peer(link, OFFER)
    link.begin(opening(12, computed=8, kept=kept))
    extend(link, 8, 11)
    commit(link, 13)
    peer.read()
    assert peer.has == (first, 12)
    (drafter,) = link.state().drafters
    assert drafter.stats.partial_sessions == (first > 0)


def test_a_prefix_hit_of_all_but_the_last_token() -> None:
    link = link_of()
    peer = Peer(link, OFFER)
    link.begin(opening(9, computed=8, kept=2))
    commit(link, 10)
    assert peer.read() == ["Open", "Commit", "Extend", "Extend"]
    assert peer.has == (2, 9)
    commit(link, 12, count=2)
    assert peer.read() == ["Commit"]
    assert peer.has == (2, 11)


def test_a_prefix_hit_waits_until_a_tree_is_asked_for() -> None:
    link = link_of()
    peer = Peer(link, OFFER)
    link.begin(opening(9, computed=8, kept=2))
    commit(link, 10, max_nodes=1)
    commit(link, 12, count=2, max_nodes=1)
    extend(link, 9, 11)
    assert peer.read() == ["Open", "Commit", "Commit"]
    assert peer.has == (2, 2)
    commit(link, 13)
    assert peer.read() == ["Commit", "Extend", "Extend"]
    assert peer.has == (2, 12)


def test_what_a_prefix_hit_brings_goes_on_once_a_tree_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    bound(monkeypatch, record=3 * ROW, step=3 * ROW)
    link = link_of()
    peer = Peer(link, OFFER)
    link.begin(opening(13, computed=12, kept=2))
    commit(link, 14)
    for length in range(15, 20):
        commit(link, length, max_nodes=1)
    peer.read()
    assert peer.has == (2, 18)


@pytest.mark.parametrize(("kept", "first"), [(0, 0), (99, 12), (None, 12)])
def test_a_drafter_that_comes_in_the_middle_is_opened_at_a_step_that_captured(kept: int | None, first: int) -> None:
    link = link_of()
    link.begin(opening(10, kept=kept))
    extend(link, 0, 9)
    commit(link, 11, features=False)
    peer = Peer(link, OFFER)
    assert peer.read() == []
    commit(link, 12, features=False)
    link.commit([Committed(KEY, (12,), 13, 8, 4, states(11, 12, (0, 1)))])
    assert peer.read() == []
    commit(link, 15, count=2)
    assert set(peer.read()) == {"Open", "Extend"}
    assert peer.has == (first, 14) and peer.tokens == list(range(15))
    commit(link, 16)
    assert peer.has == (first, 14) and peer.read() == ["Commit"]
    assert peer.has == (first, 15)


def test_a_drafter_that_comes_while_the_prompt_is_computed() -> None:
    link = link_of()
    link.begin(opening(20, kept=0))
    extend(link, 0, 6)
    peer = Peer(link, OFFER)
    extend(link, 6, 12)
    assert peer.read() == ["Open", "Extend", "Extend"]
    extend(link, 12, 19)
    commit(link, 21)
    peer.read()
    assert peer.has == (0, 20)


def test_what_is_computed_again_is_not_sent_again() -> None:
    link = link_of()
    peer = Peer(link, OFFER)
    link.begin(opening(10))
    extend(link, 0, 9)
    commit(link, 12, count=2)
    for first, end in ((0, 6), (6, 9), (9, 11)):
        extend(link, first, end)
    commit(link, 13)
    assert peer.read() == ["Open", "Extend", "Commit", "Commit"]
    assert peer.has == (0, 12)


def test_records_and_messages_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    bound(monkeypatch, record=4 * ROW, message=2 * ROW)
    link = link_of()
    peer = Peer(link, OFFER)
    link.begin(opening(20))
    extend(link, 0, 10)
    extend(link, 10, 19)
    assert peer.read() == ["Open", *["Extend"] * 6]
    commit(link, 22, count=2)
    assert peer.read() == ["Commit"]
    commit(link, 25, count=3)
    assert peer.read() == ["Commit", "Extend"]
    assert peer.has == (0, 24)


def test_a_drafter_that_reads_slowly_is_fed_as_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    bound(monkeypatch, record=64)
    link = link_of(outbox_limit=400)
    peer = Peer(link, OFFER)
    link.begin(opening(60, kept=0))
    extend(link, 0, 59)
    assert len(peer.read()) < 10
    length, steps = 60, 0
    while peer.has[1] < length - 1:
        length, steps = length + 1, steps + 1
        commit(link, length)
        peer.read(3)
        assert steps < 100
    assert steps > 5
    assert peer.has == (0, length - 1) and peer.tokens == list(range(length))


def test_what_was_never_kept_leaves_a_gap_and_then_a_later_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    bound(monkeypatch, record=64)
    link = link_of(outbox_limit=400)
    peer = Peer(link, OFFER)
    link.begin(opening(60))
    extend(link, 0, 59)
    commit(link, 61)
    assert link.state().gaps == 0
    peer.read()
    commit(link, 62)
    assert link.state().gaps == 1
    assert peer.read()[-1] == "Gap"
    commit(link, 63)
    link.receive(peer.attachment, [Resume(peer.stamp, 0)], 10)
    assert peer.read() == []
    commit(link, 65, count=2)
    assert peer.read() == ["Open", "Extend"]
    assert peer.has == (62, 64)
    assert link.state().stale == 0


def test_a_step_sends_no_more_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    bound(monkeypatch, record=2 * ROW, step=4 * ROW)
    link = link_of()
    peer = Peer(link, OFFER)
    link.begin(opening(12, kept=0))
    extend(link, 0, 11)
    assert peer.read() == ["Open", "Extend", "Extend"]
    commit(link, 13)
    assert peer.read() == ["Commit", "Extend", "Extend"]
    commit(link, 14)
    commit(link, 15)
    assert peer.has[1] < 14
    peer.read()
    assert peer.has == (0, 14)


def test_a_request_changes_hands_with_its_states() -> None:
    link = link_of()
    link.begin(opening(10, kept=0))
    old = Peer(link, OFFER)
    extend(link, 0, 9)
    commit(link, 11)
    new = Peer(link, replace(OFFER, max_nodes=4))
    commit(link, 12)
    for peer in (old, new):
        peer.read()
        assert peer.has == (0, 11)
    tree = TreeReply(Stamp(new.stamp.epoch, new.stamp.slot, new.stamp.generation, 12, 11), TokenTree((1,), (-1,)))
    link.receive(new.attachment, [tree], 10)
    commit(link, 13)
    assert old.read() == ["Close"]
    assert new.read() == ["Commit"]
    assert new.has == (0, 12)


def test_those_who_want_no_states_are_sent_none() -> None:
    link = link_of()
    Peer(link, replace(OFFER, name="other"))
    peer = Peer(link, replace(OFFER, feature_boundaries=()))
    link.begin(opening(10, computed=4, kept=0))
    extend(link, 4, 9)
    commit(link, 11)
    assert peer.read() == ["Open", "Commit"]
    assert peer.has == (4, 4)


def test_a_drafter_that_leaves_wants_nothing_any_more() -> None:
    link = link_of()
    peer = Peer(link, OFFER)
    link.begin(opening(10))
    link.drop(peer.attachment, ResourceExhaustedError("over"))
    assert link.wanted_boundaries() == ()
    extend(link, 0, 9)
    commit(link, 11)


def test_boundaries_that_would_be_too_many_together_are_refused() -> None:
    link = link_of(feature_boundaries=(2,))
    Peer(link, OFFER)
    with pytest.raises(ResourceExhaustedError, match="together"):
        Peer(link, replace(OFFER, name="q", feature_boundaries=(0,)))
    Peer(link, replace(OFFER, name="q", feature_boundaries=(2,)), replace(OFFER, name="r", feature_boundaries=()))


def commands(*records: Any) -> Sequence[Any]:
    return draft_pb2.ExchangeResponse.FromString(encode_commands(records)).commands


def test_rows_are_tensors_on_the_wire() -> None:
    link = link_of()
    peer = Peer(link, OFFER)
    link.begin(opening(3))
    extend(link, 0, 2)
    commit(link, 4)
    link.end(KEY, None)
    records = [record for _ in range(9) for record in link.take(peer.attachment)]
    assert isinstance(records[-1], Close)
    _, extended, committed, _ = commands(*records)
    tensor = extended.extend.features
    assert extended.extend.first_position == 0
    assert tensor.data_type == tensor_pb2.DATA_TYPE_BFLOAT16
    assert list(tensor.shape) == [2, 2 * HIDDEN]
    assert np.frombuffer(tensor.data, "<u2").reshape(2, -1).tolist() == [[100] * 4 + [0] * 4, [101] * 4 + [1] * 4]
    assert list(committed.commit.features.shape) == [1, 2 * HIDDEN]


def test_where_there_is_no_room_for_all_requests_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    bound(monkeypatch, record=1, message=0, step=1)  # one record a step, of one row
    link = link_of()
    peer = Peer(link, OFFER)
    keys = (KEY, RequestKey(1, 2))
    for key in keys:
        link.begin(replace(opening(1, kept=0), key=key))
    sent: list[int] = []
    for length in range(2, 22):
        link.commit([Committed(key, (length - 1,), length, 8, 4, states(length - 2, length - 1)) for key in keys])
        while records := link.take(peer.attachment):
            sent += [record.stamp.slot for record in records if isinstance(record, Extend)]
    assert len(sent) == 20
    assert sent.count(0) == sent.count(1) == 10


def test_fewer_requests_have_more_room_for_what_they_lack() -> None:
    alone, many = feature_feed.ALONE_BYTES, feature_feed.STEP_BYTES
    assert [feature_feed.step_bytes(running) for running in (0, 1, 4, 8, 64)] == [alone, alone, alone // 4, many, many]


@pytest.mark.parametrize("needs", [True, False])
def test_the_loop_learns_who_makes_no_tree_before_it_has_caught_up(
    needs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound(monkeypatch, step=4 * ROW)
    link = link_of()
    peer = Peer(link, replace(OFFER, needs_states=needs))
    link.begin(opening(20, 16, kept=0))
    behind = []
    for length in range(21, 30):
        rows = states(length - 2, length - 1)
        behind.append(link.commit([Committed(KEY, (length - 1,), length, 8, 4, rows)]))
        peer.read()
    assert behind[0] == ({KEY} if needs else set())
    assert behind[-1] == set()
