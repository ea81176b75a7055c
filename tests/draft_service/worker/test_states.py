"""Hidden states as a proposer gets them: each position once, in order, or not at all."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest
import torch

from draft_service.proposers.base import DraftRequest, Opening, Proposer, Target
from draft_service.protocol import codec
from draft_service.protocol.records import Close, Open
from draft_service.worker.session_table import SessionTable
from draft_service.worker.worker import Worker
from slipstream.rpc.errors import UnavailableError
from slipstream.v1 import draft_pb2, tensor_pb2, tree_pb2
from slipstream_kernels.draft_protocol.records import Commit, Extend, Nack, Resume, Stamp
from slipstream_kernels.token_tree import TokenTree

HIDDEN = 3


class Taker(Proposer):
    name, max_nodes, max_depth = "taker", 8, 4
    feature_boundaries = (1, 4)

    def __init__(self) -> None:
        self.opening = Opening([0], 1)
        self.tokens: list[int] = []
        self.taken: list[tuple[int, list[float]]] = []
        self.faulty = False

    def open(self, session: int, opening: Opening) -> None:
        self.opening, self.tokens, self.taken = opening, list(opening.token_ids), []

    def commit(self, session: int, token_ids: Sequence[int]) -> None:
        self.tokens += token_ids

    def take_features(self, session: int, first_position: int, features: torch.Tensor) -> None:
        if self.faulty:
            raise RuntimeError
        assert features.dtype == torch.bfloat16 and features.shape[1] == 2 * HIDDEN
        assert first_position + len(features) < len(self.tokens)
        self.taken.append((first_position, features[:, 0].tolist()))

    def close(self, session: int) -> None:
        pass

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree | None]:
        return [None] * len(requests)


class Bench:
    """A table with one slot, and the state that verify would be at."""

    def __init__(self) -> None:
        self.taker = Taker()
        self.table = SessionTable(1, 4, [self.taker], count(1), HIDDEN)
        self.length = 0

    @property
    def stamp(self) -> Stamp:
        return Stamp(1, 0, 1, self.length, self.length - 1)

    def open(self, length: int, cached: int = 0) -> Any:
        self.length = length
        return self.table.apply(Open(self.stamp, 0, Opening(list(range(length)), 1, cached_length=cached), 8, 4))

    def commit(self, number: int, states: torch.Tensor | None = None) -> Any:
        tokens = list(range(self.length, self.length + number))
        self.length += number
        return self.table.apply(Commit(self.stamp, tokens, 8, 4, states))

    def extend(self, first: int, end: int, width: int = 2 * HIDDEN) -> Any:
        return self.table.apply(Extend(self.stamp, first, rows(first, end, width)))


def rows(first: int, end: int, width: int = 2 * HIDDEN) -> torch.Tensor:
    """Each full of its position."""
    return torch.arange(first, end, dtype=torch.bfloat16)[:, None].expand(-1, width)


def test_states_of_prompts_and_steps_are_handed_on_in_order() -> None:
    bench = Bench()
    bench.open(10)
    assert bench.extend(0, 4) is None
    assert bench.extend(4, 9) is None
    assert bench.commit(3, rows(9, 12)) is None
    assert bench.commit(1) is None
    assert bench.extend(12, 13) is None
    assert bench.taker.taken == [
        (0, [0, 1, 2, 3]),
        (4, [4, 5, 6, 7, 8]),
        (9, [9, 10, 11]),
        (12, [12]),
    ]
    assert bench.table.partial == 0


def test_a_session_without_older_states_is_counted_and_no_line_of_every_log(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    with caplog.at_level(logging.DEBUG, "draft_service"):
        bench.open(10)
        bench.open(10, cached=4)
    assert bench.table.partial == 1
    (record,) = (each for each in caplog.records if "without the states of 4 tokens" in each.getMessage())
    assert record.levelno == logging.DEBUG


def test_what_came_before_is_not_handed_on_again() -> None:
    bench = Bench()
    bench.open(10, cached=4)
    assert bench.taker.opening.cached_length == 4
    assert bench.extend(4, 6) is None
    assert bench.extend(4, 6) is None
    assert bench.extend(3, 8) is None
    assert bench.taker.taken == [(4, [4, 5]), (6, [6, 7])]
    assert bench.table.dropped["stale states"] == 1


@pytest.mark.parametrize(("first", "end"), [(5, 7), (0, 10)])
def test_a_hole_or_states_ahead_of_the_tokens_ask_for_an_open(first: int, end: int) -> None:
    bench = Bench()
    bench.open(10)
    assert bench.extend(first, end) == Resume(bench.stamp, 10)
    assert bench.extend(0, 3) is None
    assert bench.table.dropped["awaits open"] == 1
    assert bench.open(10) is None
    assert bench.extend(0, 9) is None
    assert bench.taker.taken == [(0, list(range(9)))]


def test_states_of_an_unknown_slot_ask_for_an_open() -> None:
    bench = Bench()
    bench.length = 5
    assert isinstance(bench.extend(0, 4), Resume)
    bench.open(5)
    bench.table.apply(Close(bench.stamp))
    assert isinstance(bench.extend(0, 4), Resume)


def test_states_of_another_shape_or_a_proposer_that_fails_end_the_session() -> None:
    bench = Bench()
    bench.open(10)
    assert isinstance(bench.extend(0, 4, width=HIDDEN), Nack)
    bench.open(10)
    bench.taker.faulty = True
    assert isinstance(bench.extend(0, 4), Nack)


def command(**tensor: Any) -> draft_pb2.ExchangeResponse:
    kept: dict[str, Any] = {"data_type": tensor_pb2.DATA_TYPE_BFLOAT16, "shape": [2, 3], "data": bytes(12)} | tensor
    extend = draft_pb2.Extend(stamp=tree_pb2.Stamp(epoch=1), first_position=7, features=tensor_pb2.Tensor(**kept))
    return draft_pb2.ExchangeResponse(commands=[draft_pb2.DraftCommand(extend=extend)])


def test_tensors_are_read_and_checked() -> None:
    numbers = torch.randn(2, 3).bfloat16()
    (record,) = codec.decode_commands(command(data=numbers.view(torch.uint8).numpy().tobytes()))
    assert isinstance(record, Extend) and record.first_position == 7
    assert torch.equal(record.hidden_states, numbers)
    record.hidden_states[0, 0] = 1.0
    for damage in (
        {"data_type": tensor_pb2.DATA_TYPE_FLOAT16},
        {"shape": [6]},
        {"shape": [2, 3, 1]},
        {"shape": [0, 3], "data": b""},
        {"shape": [2, 4]},
        {"data": bytes(11)},
        {"shape": [2**31, 2**31]},
    ):
        with pytest.raises(UnavailableError):
            codec.decode_commands(command(**damage))
    commit = draft_pb2.Commit(token_ids=[1, 2, 3], features=command().commands[0].extend.features)
    with pytest.raises(UnavailableError, match="3 tokens"):
        codec.decode_commands(draft_pb2.ExchangeResponse(commands=[draft_pb2.DraftCommand(commit=commit)]))


def test_a_proposer_is_offered_only_where_its_boundaries_are_published() -> None:
    worker = Worker([Taker()])
    worker.start()
    try:
        assert worker.bind(Target(100, "", 64, HIDDEN, 3, (0, 1, 2, 3))).result(timeout=20).fitting == []
        assert (
            worker.bind(Target(100, "", 64, HIDDEN, 3, (0, 1, 2, 3, 4))).result(timeout=20).fitting == worker.proposers
        )
    finally:
        worker.stop()
