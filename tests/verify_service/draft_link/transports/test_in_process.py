"""The link's side of proposers in this process; their own side is played here."""

from __future__ import annotations

from dataclasses import replace
from threading import Timer

import pytest

from slipstream.generation_types import FinishReason
from slipstream.rpc.errors import FailedPreconditionError
from slipstream.v1 import draft_pb2
from slipstream_kernels.draft_protocol.proposer_host import Answer, Commands, HostLimits, Replies
from slipstream_kernels.draft_protocol.records import Commit, Stamp, TreeReply
from slipstream_kernels.ipc.device_memory import DeviceBlock
from slipstream_kernels.token_tree import TokenTree
from verify_service.core.draft_source import Committed, RequestOpening
from verify_service.core.request import RequestKey, SamplingParams
from verify_service.draft_link.draft_link import DraftLink
from verify_service.draft_link.link_config import LinkConfig
from verify_service.draft_link.records import LinkFacts
from verify_service.draft_link.transports import in_process
from verify_service.draft_link.transports.in_process import attach_host, load_host

KEY = RequestKey(1, 1)
TREE = TokenTree.chain((4, 5))
FACTS = LinkFacts("model", "tokenizer", 100, 128, 2, 512, 64, feature_boundaries=(0, 1, 2, 3), most_boundaries=1)


class PlayedHost:
    """Does nothing by itself; the test answers."""

    def __init__(self, *, spin: float = 0.0, **offer: object) -> None:
        self.spin = spin
        self._offer = {"name": "p", "max_nodes": 8, "max_depth": 4} | offer
        self.batches: list[Commands] = []
        self.begun = 0
        self.answer: Answer
        self.detached = 0

    def offer(self, link_info: bytes) -> bytes:
        info = draft_pb2.DraftLinkServiceGetInfoResponse.FromString(link_info)
        assert list(info.transports) == ["inproc"]
        return draft_pb2.AttachRequest(
            min_version=1,
            max_version=1,
            proposers=[draft_pb2.ProposerOffer(**self._offer)],
            transports=["inproc"],
            process_id=3,
        ).SerializeToString()

    @property
    def state_device(self) -> str:
        return "cpu"

    @property
    def released(self) -> int:
        return 0

    def attach(self, attached: bytes, answer: Answer, block: DeviceBlock | None = None) -> None:
        assert draft_pb2.AttachResponse.FromString(attached).transport == "inproc"
        self.answer = answer

    def put(self, commands: Commands) -> None:
        self.batches.append(commands)

    def yield_gil(self, seconds: float) -> bool:
        self.begun = len(self.batches)
        return True

    def begin(self) -> bool:
        return False

    def finish(self, seconds: float, *, unread: bool = False) -> Replies | None:
        return None

    def detach(self) -> None:
        self.detached += 1

    def stop(self, seconds: float) -> None:
        return None


def begun(host: PlayedHost, **config: object) -> tuple[DraftLink, Commit]:
    """A link with one request, which has gone one step; also the record of that step."""
    link = DraftLink(FACTS, LinkConfig(**({"deadline": 0.0} | config)))
    attach_host(link, host)
    link.begin(RequestOpening(KEY, "p", (1, 2, 3), 3, SamplingParams(seed=9), 0, "t", "", 0))
    link.commit([Committed(KEY, (8,), 4, 6, 3)])
    (opened,), (commit,) = host.batches
    assert isinstance(opened, bytes)
    record = draft_pb2.ExchangeResponse.FromString(opened).commands[0].open
    assert (list(record.token_ids), record.sampling.seed, record.tenant) == ([1, 2, 3], 9, "t")
    assert isinstance(commit, Commit)
    assert (commit.token_ids, commit.max_nodes, commit.max_depth, commit.hidden_states) == ((8,), 6, 3, None)
    return link, commit


def test_trees_are_taken_as_they_are_and_shown() -> None:
    host = PlayedHost()
    link, commit = begun(host)
    host.answer([TreeReply(commit.stamp, TREE, (0, 0))])
    assert link.collect([KEY]) == [replace(TREE, sources=("p", "p"))]
    (status,) = link.proposers()
    assert status.attachment is not None
    assert (status.name, status.attachment.request.process_id) == ("p", 3)
    (drafter,) = link.state().drafters
    assert (drafter.transport, drafter.requests) == ("inproc", 1)
    link.end(KEY, FinishReason.LENGTH)
    assert isinstance(host.batches[-1][0], bytes)


def test_the_proposers_begin_with_a_step_while_the_link_is_free() -> None:
    class Answering(PlayedHost):
        def yield_gil(self, seconds: float) -> bool:
            (commit,) = self.batches[-1]
            assert isinstance(commit, Commit)
            self.answer([TreeReply(commit.stamp, TREE)])
            return super().yield_gil(seconds)

    host = Answering()
    link, _ = begun(host)
    assert host.begun == 2
    assert link.collect([KEY]) == [TREE]


@pytest.mark.parametrize("spin", [0.001, 30.0])
def test_a_step_that_waits_awake_sees_the_answer_and_the_end(spin: float) -> None:
    host = PlayedHost(spin=spin)
    link, commit = begun(host, deadline=30.0, deadline_share=None)
    later = Timer(0.05, host.answer, ([TreeReply(commit.stamp, TREE)],))
    later.start()
    assert link.collect([KEY]) == [TREE]
    link.commit([Committed(KEY, (9,), 5, 6, 3)])
    leaving = Timer(0.05, link.close)
    leaving.start()
    assert link.collect([KEY]) == [None]
    assert host.detached == 1
    later.join()
    leaving.join()


def test_a_step_that_waits_awake_goes_on_at_its_deadline() -> None:
    link, _ = begun(PlayedHost(spin=0.001), deadline=0.01)
    assert link.collect([KEY]) == [None]
    assert link.state().misses == 1


@pytest.mark.parametrize("stale", [0, 1, 2, 3, 4])
def test_a_tree_for_another_state_is_dropped(stale: int) -> None:
    host = PlayedHost()
    link, commit = begun(host)
    stamp = list(commit.stamp)
    stamp[stale] += 1
    host.answer([TreeReply(Stamp(*stamp), TREE)])
    assert link.collect([KEY]) == [None]
    assert link.state().stale == 1
    assert host.detached == 0


@pytest.mark.parametrize("tree", [TokenTree((4, 4), (1, 0)), TokenTree.chain((100,)), TokenTree.chain([4] * 4)])
def test_a_malformed_tree_ends_the_attachment_alone(tree: TokenTree) -> None:
    host = PlayedHost()
    link, commit = begun(host)
    host.answer([TreeReply(commit.stamp, tree)])
    assert link.state().malformed == 1
    assert host.detached == 1
    host.answer([TreeReply(commit.stamp, TREE)])
    assert link.collect([KEY]) == [None]
    link.commit([Committed(KEY, (9,), 5, 6, 3)])
    link.end(KEY, FinishReason.LENGTH)


def test_it_ends_with_the_link() -> None:
    host = PlayedHost()
    link, _ = begun(host)
    link.close()
    assert host.detached == 1
    assert link.proposers() == []


def test_what_does_not_fit_is_not_attached() -> None:
    with pytest.raises(FailedPreconditionError, match="at most 1 are published"):
        begun(PlayedHost(feature_boundaries=[1, 2]))


def test_without_the_entry_point_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_process, "HOST_ENTRY_POINTS", "slipstream.nobody_has_these")
    with pytest.raises(FailedPreconditionError, match=r"entry point inproc in group slipstream\.nobody_has_these"):
        load_host(["ngram"], HostLimits())


class SharedHost(PlayedHost):
    """Is called on the step's thread: `replies` answer what was begun, None as long as they are not there."""

    replies: Replies | None = None

    def begin(self) -> bool:
        self.begun = len(self.batches)
        return True

    def finish(self, seconds: float, *, unread: bool = False) -> Replies | None:
        replies, self.replies = self.replies, None
        return replies


def test_what_a_steps_thread_begins_it_finishes() -> None:
    host = SharedHost()
    link, commit = begun(host, deadline=30.0)
    assert host.begun == 2
    host.replies = [TreeReply(commit.stamp, TREE, (0, 0))]
    assert link.collect([KEY]) == [replace(TREE, sources=("p", "p"))]
    host.answer([])


def test_what_is_not_there_at_the_deadline_is_taken_from_whoever_answers() -> None:
    host = SharedHost()
    link, commit = begun(host, deadline=0.01)
    assert link.collect([KEY]) == [None]
    assert link.state().misses == 1
    host.answer([TreeReply(commit.stamp, TREE)])
    assert link.collect([KEY]) == [TREE]


def test_a_malformed_tree_that_a_steps_thread_has_made_ends_the_attachment_alone() -> None:
    host = SharedHost()
    link, commit = begun(host)
    host.replies = [TreeReply(commit.stamp, TokenTree((4, 4), (1, 0)))]
    assert link.collect([KEY]) == [None]
    assert (link.state().malformed, host.detached) == (1, 1)


class LateHost(SharedHost):
    """Needs `takes` seconds of a clock that goes only while somebody waits."""

    def __init__(self, takes: float) -> None:
        super().__init__()
        self.takes, self.now, self.offered = takes, 0.0, 0.0

    def finish(self, seconds: float, *, unread: bool = False) -> Replies | None:
        if seconds > 0.0:
            self.offered = seconds
            self.now += min(seconds, self.takes)
        return super().finish(seconds, unread=unread) if seconds >= self.takes else None


def waits_for(host: LateHost, *, right: bool, steps: int) -> list[float]:
    """How long each of so many steps waits, 4 ms each plain and 5 with a tree, where trees are right or wrong."""
    link = DraftLink(FACTS, LinkConfig(deadline=0.02, deadline_share=0.25), clock=lambda: host.now)
    attach_host(link, host)
    link.begin(RequestOpening(KEY, "p", (1, 2, 3), 3, SamplingParams(seed=9), 0, "t", "", 0))
    length, tokens, waits = 4, (8,), []
    for _ in range(steps):
        link.commit([Committed(KEY, tokens, length, 6, 3)])
        commit = host.batches[-1][0]
        assert isinstance(commit, Commit)
        host.replies, host.offered = [TreeReply(commit.stamp, TokenTree.chain((4, 4, 4)))], 0.0
        (tree,) = link.collect([KEY])
        waits.append(host.offered)
        if tree is None and host.replies is not None:
            host.answer(host.replies)
        host.now += 0.005 if tree else 0.004
        tokens = (4,) * (4 if tree else 1) if right else (5,)
        length += len(tokens)
    return waits


def test_a_drafter_whose_late_trees_would_have_been_right_is_waited_for_longer() -> None:
    host = LateHost(takes=0.0013)
    waits = waits_for(host, right=True, steps=40)
    assert max(waits[:3]) <= 0.001
    assert min(waits[-10:]) > 0.0013


def test_one_whose_trees_are_wrong_is_not() -> None:
    assert max(waits_for(LateHost(takes=0.0013), right=False, steps=40)) <= 0.001
