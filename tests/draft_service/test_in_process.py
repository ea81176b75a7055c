"""The proposers' host as a verify service in the same process sees it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from time import sleep

import numpy as np
import pytest
import torch

from draft_service.in_process import InProcessHost, QueueFeed, create
from draft_service.proposers.base import (
    DraftRequest,
    Opening,
    Proposer,
    ProposerOptions,
    SessionRefusedError,
    Target,
)
from draft_service.proposers.ngram.ngram import create as create_ngram
from draft_service.protocol.placement import Placement
from draft_service.protocol.records import Record
from slipstream.rpc.errors import FailedPreconditionError, InvalidArgumentError
from slipstream.v1 import draft_pb2, sampling_pb2, tree_pb2
from slipstream_kernels.draft_protocol.proposer_host import HostLimits, Replies
from slipstream_kernels.draft_protocol.records import Commit, RoundCost, Stamp, TreeReply
from slipstream_kernels.token_tree import TokenTree

INFO = draft_pb2.DraftLinkServiceGetInfoResponse(
    min_version=1, max_version=1, vocab_size=100, hidden_size=4, num_layers=2, feature_boundaries=[0, 1, 2, 3]
).SerializeToString()
ATTACHED = draft_pb2.AttachResponse(version=1, epoch=7, transport="inproc", num_slots=4).SerializeToString()
REFUSED = 99
SECONDS = 30.0
FOREVER = 1e5
DEMO = Path(__file__).parents[2] / "demo_models"


class Recorder(Proposer):
    """Guesses that the last token comes again, and keeps what it is told."""

    name, max_nodes, max_depth, feature_boundaries = "recorder", 8, 4, (1,)

    def __init__(self) -> None:
        self.openings: list[Opening] = []
        self.states: list[torch.Tensor] = []
        self.closed: SimpleQueue[int] = SimpleQueue()
        self.last: dict[int, int] = {}

    def bind(self, target: Target) -> None:
        if target.vocab_size != 100:
            raise FailedPreconditionError("another vocabulary")

    def open(self, session: int, opening: Opening) -> None:
        if opening.token_ids[-1] == REFUSED:
            raise SessionRefusedError("not this one")
        self.openings.append(opening)
        self.last[session] = opening.token_ids[-1]

    def commit(self, session: int, token_ids: Sequence[int]) -> None:
        self.last[session] = token_ids[-1]

    def take_features(self, session: int, first_position: int, features: torch.Tensor) -> None:
        self.states.append(features)

    def close(self, session: int) -> None:
        self.closed.put(session)

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree | None]:
        return [TokenTree.chain([self.last[request.session]] * request.max_depth) for request in requests]


@pytest.fixture
def proposer() -> Recorder:
    return Recorder()


@pytest.fixture
def host(proposer: Recorder) -> Iterator[InProcessHost]:
    host = InProcessHost([proposer])
    yield host
    host.stop(SECONDS)


def opened(slot: int, tokens: Sequence[int]) -> bytes:
    stamp = tree_pb2.Stamp(epoch=7, slot=slot, generation=1, base_length=len(tokens), root_token=tokens[-1])
    sampling = sampling_pb2.SamplingParams(temperature=0.5, seed=2**63 + 5)
    record = draft_pb2.Open(
        stamp=stamp, token_ids=tokens, prompt_length=1, sampling=sampling, choice_index=3, tenant="t", max_nodes=1
    )
    return draft_pb2.ExchangeResponse(commands=[draft_pb2.DraftCommand(open=record)]).SerializeToString()


def test_it_offers_and_drafts_by_values(host: InProcessHost, proposer: Recorder) -> None:
    request = draft_pb2.AttachRequest.FromString(host.offer(INFO))
    assert list(request.transports) == ["inproc"]
    assert [(offer.name, list(offer.feature_boundaries)) for offer in request.proposers] == [("recorder", [1])]
    answers: SimpleQueue[Replies] = SimpleQueue()
    host.attach(ATTACHED, answers.put)
    states = np.arange(4, dtype=np.uint16).reshape(1, 4)
    stamp = Stamp(7, 2, 1, 3, 42)
    host.put([opened(2, (5, 6)), Commit(stamp, (42,), 6, 3, None)])
    assert answers.get(timeout=SECONDS) == [TreeReply(stamp, TokenTree.chain([42] * 3))]
    host.put([Commit(Stamp(7, 2, 1, 4, 43), (43,), 6, 2, None)])
    assert answers.get(timeout=SECONDS) == [TreeReply(Stamp(7, 2, 1, 4, 43), TokenTree.chain([43] * 2))]
    opening = proposer.openings[0]
    assert (list(opening.token_ids), opening.prompt_length, opening.tenant) == ([5, 6], 1, "t")
    assert (opening.sampling.seed, opening.sampling.choice, opening.sampling.temperature) == (2**63 + 5, 3, 0.5)
    host.put([opened(3, (5,)), Commit(Stamp(7, 3, 1, 2, 8), (8,), 6, 1, states)])
    answers.get(timeout=SECONDS)
    states += 1
    assert torch.equal(proposer.states[0].view(torch.int16), torch.arange(4, dtype=torch.int16).reshape(1, 4))
    host.detach()
    assert sorted(proposer.closed.get(timeout=SECONDS) for _ in range(2)) == [1, 2]


@pytest.mark.parametrize("spin", [0.0, 0.001, SECONDS])
def test_whoever_puts_gives_way_to_a_worker_that_waits(spin: float) -> None:
    feed, woken = QueueFeed(spin), SimpleQueue[list[Record]]()
    feed.put([opened(0, (5, 6))])
    feed.receive()

    def work() -> None:
        feed.wait(SECONDS)
        woken.put(feed.receive())

    for slot in range(3):
        worker = Thread(target=work)
        worker.start()
        while not feed.asleep:
            sleep(0.0001)
        feed.put([Commit(Stamp(7, slot, 1, 3, 42), (42,), 6, 3, None)])
        assert feed.yield_gil(SECONDS)
        worker.join(SECONDS)
        assert [record.stamp.slot for record in woken.get(timeout=SECONDS)] == [slot]


@pytest.mark.parametrize("spin", [0.0, SECONDS])
def test_a_wait_ends_at_a_poke_and_at_what_asks_for_no_tree(spin: float) -> None:
    feed, ended = QueueFeed(spin), SimpleQueue[int]()
    feed.put([opened(0, (5, 6))])

    def work() -> None:
        while len(feed.receive()) < 1:
            feed.wait(SECONDS)
        ended.put(0)
        feed.wait(SECONDS)
        ended.put(1)

    worker = Thread(target=work)
    worker.start()
    assert ended.get(timeout=SECONDS) == 0
    feed.wake()
    assert ended.get(timeout=SECONDS) == 1
    worker.join(SECONDS)


def test_a_worker_that_does_not_wake_is_waited_for_no_longer_than_said() -> None:
    feed = QueueFeed()
    feed.put([b""])
    assert not feed.yield_gil(FOREVER)
    feed.asleep = True
    assert not feed.yield_gil(0.001)


def test_a_refusal_comes_as_the_message_of_the_exchange(host: InProcessHost) -> None:
    host.offer(INFO)
    answers: SimpleQueue[Replies] = SimpleQueue()
    host.attach(ATTACHED, answers.put)
    host.put([opened(0, (REFUSED,))])
    (reply,) = answers.get(timeout=SECONDS)
    assert isinstance(reply, bytes)
    assert draft_pb2.ExchangeRequest.FromString(reply).replies[0].nack.reason == "not this one"


def test_proposers_that_do_not_fit_are_named(host: InProcessHost) -> None:
    info = draft_pb2.DraftLinkServiceGetInfoResponse.FromString(INFO)
    info.vocab_size = 101
    with pytest.raises(FailedPreconditionError, match="recorder"):
        host.offer(info.SerializeToString())


@pytest.mark.parametrize("spec", ["nonsense", "none", "", "ngram:9-2"])
def test_what_is_no_proposer_is_refused(spec: str) -> None:
    with pytest.raises(InvalidArgumentError):
        create([spec], HostLimits())


def test_proposers_are_tried_with_states_of_the_model_that_is_served(caplog: pytest.LogCaptureFixture) -> None:
    """Two that read a boundary which is none of theirs; n-grams, which read none, have no model read."""
    head = f"eagle3:{DEMO}/slipstream-demo-eagle3:target={DEMO}/slipstream-demo:boundaries=3-6-9"
    with caplog.at_level(logging.INFO, "draft_service.layer_check.capture_layer_check"):
        create(["ngram", head], HostLimits(target=str(DEMO / "slipstream-demo"), boundary_check_mib=100)).stop(SECONDS)
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert "eagle3 reads boundaries 3-6-9, but seems made for 2-5-8" in record.getMessage()
        caplog.clear()
        create([head], HostLimits(target=str(DEMO / "slipstream-demo"))).stop(SECONDS)
        create(["ngram"], HostLimits(target="nowhere", boundary_check_mib=100)).stop(SECONDS)
    assert not caplog.records


def test_the_operators_limits_are_those_of_the_offer() -> None:
    host = create(["ngram"], HostLimits(max_nodes=5, max_depth=3))
    (offer,) = draft_pb2.AttachRequest.FromString(host.offer(INFO)).proposers
    host.stop(SECONDS)
    assert (offer.max_nodes, offer.max_depth) == (5, 3)


def test_verify_is_told_where_each_proposer_computes_and_what_its_rounds_take() -> None:
    recorder, ngram = Recorder(), create_ngram(ProposerOptions("ngram"))
    recorder.round_costs = [RoundCost(16, 5, 0.003)]
    host = InProcessHost([recorder, ngram], placement=Placement("cuda:0", "GPU-0a"))
    request = draft_pb2.AttachRequest.FromString(host.offer(INFO))
    host.stop(SECONDS)
    assert (request.device, request.gpu_uuid) == ("cuda:0", "GPU-0a")
    assert [offer.device for offer in request.proposers] == ["", "cpu"]
    assert [list(offer.round_costs) for offer in request.proposers] == [
        [draft_pb2.RoundCost(requests=16, levels=5, seconds=0.003)],
        [],
    ]
    host = create(["ngram"], HostLimits(device="cuda:7"))
    assert draft_pb2.AttachRequest.FromString(host.offer(INFO)).device == "cuda:7"
    host.stop(SECONDS)
