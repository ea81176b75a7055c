"""Proposers are told how long a verify step goes on waiting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from queue import SimpleQueue
from threading import Event
from time import sleep

import pytest

from draft_service.in_process import InProcessHost
from draft_service.proposers.base import DraftRequest, Opening, Proposer
from slipstream.v1 import draft_pb2, sampling_pb2, tree_pb2
from slipstream_kernels.draft_protocol.proposer_host import Replies
from slipstream_kernels.token_tree import TokenTree

INFO = draft_pb2.DraftLinkServiceGetInfoResponse(min_version=1, max_version=1, vocab_size=100).SerializeToString()
SECONDS = 30.0


class Busy(Proposer):
    """Keeps how much time it is given. Once `held`, its background work lasts a while after `go`."""

    name, max_nodes, max_depth = "busy", 8, 4

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.held, self.reading, self.go = Event(), Event(), Event()

    def open(self, session: int, opening: Opening) -> None:
        return None

    def commit(self, session: int, token_ids: Sequence[int]) -> None:
        return None

    def close(self, session: int) -> None:
        return None

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree | None]:
        self.seconds += [request.seconds for request in requests]
        return [None] * len(requests)

    def advance(self) -> bool:
        if self.held.is_set():
            self.reading.set()
            self.go.wait(SECONDS)
            sleep(0.05)
        return False


@pytest.fixture
def busy() -> Busy:
    return Busy()


@pytest.fixture
def host(busy: Busy) -> Iterator[InProcessHost]:
    host = InProcessHost([busy])
    host.offer(INFO)
    yield host
    busy.go.set()
    host.stop(SECONDS)


def attached(deadline_us: int) -> bytes:
    return draft_pb2.AttachResponse(
        version=1, epoch=7, transport="inproc", num_slots=4, deadline_us=deadline_us
    ).SerializeToString()


def opened(slot: int) -> bytes:
    stamp = tree_pb2.Stamp(epoch=7, slot=slot, generation=1, base_length=1, root_token=5)
    record = draft_pb2.Open(
        stamp=stamp,
        token_ids=[5],
        prompt_length=1,
        sampling=sampling_pb2.SamplingParams(temperature=0.0),
        max_nodes=4,
        max_depth=2,
    )
    return draft_pb2.ExchangeResponse(commands=[draft_pb2.DraftCommand(open=record)]).SerializeToString()


@pytest.mark.parametrize(("deadline_us", "least", "most"), [(4_000_000_000, 3900.0, 4000.0), (0, inf, inf)])
def test_what_verify_said_less_what_has_passed(host, busy, deadline_us, least, most) -> None:
    answers: SimpleQueue[Replies] = SimpleQueue()
    host.attach(attached(deadline_us), answers.put)
    for slot in range(3):
        host.put([opened(slot)])
        answers.get(timeout=SECONDS)
    assert len(busy.seconds) == 3
    assert all(least <= seconds <= most for seconds in busy.seconds)


def test_what_came_while_a_piece_was_read_has_waited(host, busy) -> None:
    answers: SimpleQueue[Replies] = SimpleQueue()
    host.attach(attached(20_000), answers.put)
    busy.held.set()
    host.put([opened(0)])
    assert busy.reading.wait(SECONDS)
    host.put([opened(1)])
    busy.go.set()
    replies = 0
    while replies < 2:
        replies += len(answers.get(timeout=SECONDS))
    assert busy.seconds[-1] == 0.0
