from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from draft_service.proposers.base import DraftRequest, Opening, Proposer, SessionRefusedError
from draft_service.protocol import codec
from draft_service.protocol.records import Close, Open
from draft_service.worker.session_table import SessionTable
from slipstream.v1 import draft_pb2
from slipstream_kernels.draft_protocol.records import Commit, Gap, Nack, Resume, Stamp
from slipstream_kernels.token_tree import TokenTree


class Recorder(Proposer):
    name, max_nodes, max_depth = "recorder", 8, 4

    def __init__(self) -> None:
        self.texts: dict[int, list[int]] = {}

    def open(self, session: int, opening: Opening) -> None:
        assert session not in self.texts
        if opening.tenant == "unwelcome":
            raise SessionRefusedError("unwelcome")
        self.texts[session] = list(opening.token_ids)

    def commit(self, session: int, token_ids: Sequence[int]) -> None:
        self.texts[session].extend(token_ids)

    def close(self, session: int) -> None:
        del self.texts[session]

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree | None]:
        return [None] * len(requests)


def table_of(recorder: Recorder) -> SessionTable:
    return SessionTable(epoch=1, num_slots=4, proposers=[recorder], numbers=count(1))


def at(tokens: Sequence[int], *, slot: int = 0, generation: int = 1, epoch: int = 1) -> Stamp:
    return Stamp(epoch, slot, generation, len(tokens), tokens[-1])


def opened(tokens: list[int], *, generation: int = 1, tenant: str = "") -> Open:
    return Open(at(tokens, generation=generation), 0, Opening(tokens, 1, tenant=tenant), 64, 63)


def committed(tokens: list[int], new: int, *, generation: int = 1, max_nodes: int = 5) -> Commit:
    return Commit(at(tokens, generation=generation), tokens[-new:], max_nodes, 3)


def test_commits_follow_one_another() -> None:
    recorder = Recorder()
    table = table_of(recorder)
    assert table.apply(opened([1, 2])) is None
    assert table.apply(committed([1, 2, 3, 4], 2)) is None
    assert recorder.texts == {1: [1, 2, 3, 4]}
    ((slot, request),) = table.wanted()[recorder]
    assert slot.stamp == at([1, 2, 3, 4])
    assert request == DraftRequest(1, 5, 3)


def test_stale_records_are_dropped_and_counted() -> None:
    recorder = Recorder()
    table = table_of(recorder)
    table.apply(opened([1, 2], generation=5))
    assert table.apply(Close(at([1, 2], generation=4))) is None
    assert table.apply(committed([1, 2, 3], 1, generation=4)) is None
    assert table.apply(Close(at([1, 2], generation=5, epoch=2))) is None
    assert table.apply(committed([1, 2], 1, generation=5)) is None
    assert recorder.texts == {1: [1, 2]}
    assert table.dropped == {"generation": 2, "epoch": 1, "stale commit": 1}


def test_a_hole_is_answered_once() -> None:
    recorder = Recorder()
    table = table_of(recorder)
    table.apply(opened([1, 2]))
    lost = committed([1, 2, 3, 4], 1)
    assert table.apply(lost) == Resume(lost.stamp, 2)
    assert not recorder.texts
    assert table.apply(committed([1, 2, 3, 4, 5], 1)) is None
    assert not table.wanted()
    table.apply(opened([1, 2, 3, 4, 5]))
    assert recorder.texts == {2: [1, 2, 3, 4, 5]}


def test_a_commit_of_a_request_never_opened_asks_for_it() -> None:
    table = table_of(Recorder())
    unknown = committed([1, 2, 3], 1)
    assert table.apply(unknown) == Resume(unknown.stamp, 0)
    table.apply(opened([1, 2, 3, 4]))
    newer = committed([7, 8], 1, generation=2)
    assert table.apply(newer) == Resume(newer.stamp, 0), "the slot was reused and its Open lost"


def test_a_gap_says_how_far_the_text_is_known() -> None:
    table = table_of(Recorder())
    table.apply(opened([1, 2]))
    gap = Gap(at([1, 2, 3, 4]), 1)
    assert table.apply(gap) == Resume(gap.stamp, 2)


def test_a_refused_request_is_left_alone_until_the_slot_is_reused() -> None:
    recorder = Recorder()
    table = table_of(recorder)
    refused = opened([1, 2], tenant="unwelcome")
    assert table.apply(refused) == Nack(refused.stamp, "unwelcome")
    assert table.apply(committed([1, 2, 3], 1)) is None
    assert table.dropped == {"refused": 1}
    table.apply(opened([4, 5], generation=2))
    assert recorder.texts == {2: [4, 5]}


def test_reuse_closes_the_session_before() -> None:
    recorder = Recorder()
    table = table_of(recorder)
    table.apply(opened([1, 2]))
    table.apply(opened([3, 4], generation=2))
    assert recorder.texts == {2: [3, 4]}
    table.close_all()
    assert not recorder.texts
    assert len(table) == 0


stamps = st.builds(Stamp, st.integers(0, 2), st.integers(0, 5), st.integers(0, 3), st.integers(0, 6), st.integers(0, 3))
tokens = st.lists(st.integers(0, 3), max_size=5)
limits = st.integers(0, 9)
records = st.one_of(
    st.builds(Open, stamps, st.integers(0, 2), st.builds(Opening, tokens, st.integers(0, 6)), limits, limits),
    st.tuples(stamps, tokens, limits, limits).map(lambda parts: Commit(*parts)),
    st.builds(Close, stamps),
    st.builds(Gap, stamps),
)


@given(st.lists(records, max_size=30))
def test_no_sequence_of_records_confuses_the_table(sequence) -> None:
    recorder = Recorder()
    table = table_of(recorder)
    for record in sequence:
        table.apply(record)
        assert len(table) == len(recorder.texts)
        for slot, request in table.wanted().get(recorder, []):
            text = recorder.texts[request.session]
            assert (slot.stamp.base_length, slot.stamp.root_token) == (len(text), text[-1])
            assert request.max_nodes > 1
            assert request.max_depth > 0


@given(st.binary(max_size=200))
def test_any_bytes_that_parse_are_taken(data) -> None:
    message = draft_pb2.ExchangeResponse()
    try:
        message.ParseFromString(data)
    except Exception:  # noqa: BLE001 (protobuf's own error; gRPC ends the call for it)
        return
    table = table_of(Recorder())
    for record in codec.decode_commands(message):
        table.apply(record)


def test_tokens_beyond_the_vocabulary_reach_no_proposer() -> None:
    recorder = Recorder()
    table = table_of(recorder)
    table.vocab_size = 100
    assert table.apply(opened([1, 100])) == Nack(at([1, 100]), "token 100 is outside the vocabulary of 100")
    assert table.apply(opened([1, 99], generation=2)) is None
    refusal = table.apply(committed([1, 99, 5, 100], 2, generation=2))
    assert refusal == Nack(at([1, 99], generation=2), "token 100 is outside the vocabulary of 100")
    assert recorder.texts == {}
    assert len(table) == 0


def test_records_of_slots_that_verify_does_not_have_take_no_memory() -> None:
    table = table_of(Recorder())
    for slot in range(4, 100):
        assert table.apply(Commit(at([1, 2], slot=slot), [2], 5, 3)) is None
        assert table.apply(Gap(at([1], slot=slot), 1)) is None
    assert not table._slots
    assert table.dropped["slot"] == 192
