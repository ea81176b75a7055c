"""Rounds of proposers that the verify service's own thread makes, and what becomes of those that it does not finish."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from threading import Event, Timer, current_thread
from time import sleep

import pytest

from draft_service import in_process
from draft_service.in_process import InProcessHost, SharedFeed
from draft_service.proposers.base import DraftFuture, DraftRequest, FollowRequest, Opening, Proposer
from slipstream.v1 import draft_pb2, sampling_pb2, tree_pb2
from slipstream_kernels.device_tree import DeviceTree
from slipstream_kernels.draft_protocol.proposer_host import DevicePassResult, EnqueuedRound, EnqueueRequest, Replies
from slipstream_kernels.draft_protocol.records import Commit, Stamp, TreeReply
from slipstream_kernels.token_tree import TokenTree

INFO = draft_pb2.DraftLinkServiceGetInfoResponse(min_version=1, max_version=1, vocab_size=100).SerializeToString()
ATTACHED = draft_pb2.AttachResponse(version=1, epoch=7, transport="inproc", num_slots=4).SerializeToString()
SECONDS = 30.0


class Device(Proposer):
    """Guesses that the last token comes again, as soon as `done` is set; keeps which threads asked."""

    name, max_nodes, max_depth, shares_thread = "device", 8, 4, True

    def __init__(self) -> None:
        self.done, self.free, self.busy = Event(), Event(), Event()
        self.done.set()
        self.free.set()
        self.threads: list[str] = []
        self.last: dict[int, int] = {}
        self.opened: SimpleQueue[int] = SimpleQueue()

    def open(self, session: int, opening: Opening) -> None:
        self.opened.put(session)
        self.last[session] = opening.token_ids[-1]

    def commit(self, session: int, token_ids: Sequence[int]) -> None:
        self.last[session] = token_ids[-1]

    def close(self, session: int) -> None:
        del self.last[session]

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree | None]:
        return self.begin(requests).result()

    def begin(self, requests: Sequence[DraftRequest]) -> UnderWay:
        self.threads.append(current_thread().name)
        return UnderWay(self.done, [TokenTree.chain([self.last[request.session]] * 2) for request in requests])

    def advance(self) -> bool:
        if not self.free.is_set():
            self.busy.set()
            self.free.wait(SECONDS)
        return False


class UnderWay(DraftFuture):
    def __init__(self, done: Event, trees: list[TokenTree | None], *, on_device: bool = False) -> None:
        self.done, self.made, self.on_device = done, trees, on_device

    def wait(self, seconds: float) -> bool:
        return self.done.wait(max(0.0, seconds))

    def device_trees(self) -> list[TokenTree | None] | None:
        return self.made if self.on_device else None

    def result(self) -> list[TokenTree | None]:
        self.done.wait(SECONDS)
        return self.made


class Watched(SharedFeed):
    """Tells whether the worker's thread rests, which it does until it is woken."""

    rests: Event | None = None

    def wait(self, seconds: float) -> None:
        assert Watched.rests is not None
        if not self._woken.is_set():
            Watched.rests.set()
        super().wait(SECONDS)
        Watched.rests.clear()


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture
def answers() -> SimpleQueue[Replies]:
    """What the worker's own thread says."""
    return SimpleQueue()


@pytest.fixture
def host(device: Device, answers: SimpleQueue[Replies], monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcessHost]:
    """A request is open, and the worker's thread rests."""
    Watched.rests = Event()
    monkeypatch.setattr(in_process, "SharedFeed", Watched)
    host = InProcessHost([device])
    host.offer(INFO)
    host.attach(ATTACHED, answers.put)
    host.put([opened(0)])
    assert device.opened.get(timeout=SECONDS)
    assert Watched.rests.wait(SECONDS)
    yield host
    device.done.set()
    device.free.set()
    host.stop(SECONDS)


def opened(slot: int, proposer: int = 0) -> bytes:
    stamp = tree_pb2.Stamp(epoch=7, slot=slot, generation=1, base_length=1, root_token=5)
    sampling = sampling_pb2.SamplingParams(temperature=0.0)
    record = draft_pb2.Open(
        stamp=stamp, proposer=proposer, token_ids=[5], prompt_length=1, sampling=sampling, max_nodes=1
    )
    commands = [draft_pb2.DraftCommand(open=record)]
    return draft_pb2.ExchangeResponse(commands=commands).SerializeToString()


def committed(length: int, token: int) -> Commit:
    return Commit(Stamp(7, 0, 1, length, token), (token,), 8, 4, None)


def tree_of(length: int, token: int) -> list[TreeReply]:
    return [TreeReply(Stamp(7, 0, 1, length, token), TokenTree.chain([token] * 2))]


def test_a_round_is_begun_and_finished_on_the_calling_thread(host, device, answers) -> None:
    assert host.finish(0.0) is None
    host.put([committed(2, 8)])
    assert host.begin()
    assert host.finish(SECONDS) == tree_of(2, 8)
    assert host.finish(0.0) is None
    host.put([committed(3, 9)])
    assert host.begin()
    assert host.finish(SECONDS) == tree_of(3, 9)
    assert device.threads == [current_thread().name] * 2
    assert answers.empty()


def test_one_that_is_not_done_in_time_is_finished_by_the_workers_thread(host, device, answers) -> None:
    host.put([committed(2, 8)])
    device.done.clear()
    assert host.begin()
    assert host.finish(0.001) is None
    host.put([committed(3, 9)])
    assert not host.begin()
    assert not host.yield_gil(0.0)
    assert host.finish(0.001) is None
    device.done.set()
    replies = [*answers.get(timeout=SECONDS), *answers.get(timeout=SECONDS)]
    assert [reply.stamp for reply in replies] == [(7, 0, 1, 2, 8), (7, 0, 1, 3, 9)]
    assert replies[1:] == tree_of(3, 9)
    assert Watched.rests is not None
    assert Watched.rests.wait(SECONDS)
    host.put([committed(4, 7)])
    assert host.begin()
    assert host.finish(SECONDS) == tree_of(4, 7)
    assert device.threads == [current_thread().name, "draft-worker", current_thread().name]


def test_while_the_workers_thread_is_busy_the_round_is_its_own(host, device, answers) -> None:
    device.free.clear()
    host.put([opened(1)])
    assert device.busy.wait(SECONDS)
    host.put([committed(2, 8)])
    assert not host.begin()
    assert host.finish(0.001) is None
    device.free.set()
    assert answers.get(timeout=SECONDS) == tree_of(2, 8)
    assert device.threads == ["draft-worker"]


class Promised:
    """Trees on a device that nobody reads."""


def followed_after(host: InProcessHost, device: Device, record: Commit, seconds: float = 0.0) -> list[int]:
    """Sessions that are drafted for behind a pass, told of a step that nobody has begun with; see `Worker.begin`."""
    told: list[int] = []

    def follow(requests: Sequence[FollowRequest], _: object) -> EnqueuedRound:
        told.extend(request.row for request in requests)
        return EnqueuedRound()

    device.follow = follow
    host.put([record])
    host.follow([EnqueueRequest(record.stamp, 3, 1, 0, 8, 4)], DevicePassResult(None, None, None), seconds)
    return told


def test_a_step_that_has_its_trees_is_taken_in_before_the_round_behind_the_next(host, device, answers) -> None:
    trees = [DeviceTree(Promised(), 0, 2, 2)]
    device.begin = lambda requests: UnderWay(device.done, trees[: len(requests)], on_device=True)
    assert followed_after(host, device, committed(2, 8)._replace(handed=True)) == [3]
    assert host.finish(0.0) is None
    assert device.last == {1: 8}
    assert followed_after(host, device, committed(3, 9)) == [], "a tree that is waited for comes first"
    assert [reply.stamp for reply in host.finish(SECONDS, unread=True)] == [(7, 0, 1, 3, 9)]
    assert answers.empty()


def test_the_round_behind_a_pass_waits_for_the_workers_thread_as_long_as_it_may(host, device) -> None:
    device.begin = lambda requests: UnderWay(device.done, [DeviceTree(Promised(), 0, 2, 2)], on_device=True)
    record = committed(2, 8)._replace(handed=True)
    device.free.clear()
    host.put([opened(1)])
    assert device.busy.wait(SECONDS)
    assert followed_after(host, device, record) == []
    Timer(0.05, device.free.set).start()
    assert followed_after(host, device, committed(3, 9)._replace(handed=True), SECONDS) == [3]


def test_what_a_device_does_in_the_background_holds_up_no_round_behind_a_pass(host, device) -> None:
    device.begin = lambda requests: UnderWay(device.done, [DeviceTree(Promised(), 0, 2, 2)], on_device=True)
    work, waits, end = [True], Event(), Event()

    def settle() -> None:
        waits.set()
        end.wait(SECONDS)

    device.advance, device.settle = lambda: bool(work and work.pop()), settle
    host.put([opened(1)])
    assert waits.wait(SECONDS), "the worker's thread waits for the device"
    assert followed_after(host, device, committed(2, 8)._replace(handed=True)) == [3]
    end.set()


def test_what_the_workers_thread_answers_is_told_while_others_may_make_a_round(device) -> None:
    told: SimpleQueue[bool] = SimpleQueue()
    host = InProcessHost([device])
    host.offer(INFO)
    host.attach(ATTACHED, lambda _: told.put(not host._worker._pass_lock.locked()))
    host.put([opened(0)])
    host.put([committed(2, 8)])
    host.yield_gil(0.0)
    assert told.get(timeout=SECONDS)
    host.stop(SECONDS)


def test_proposers_that_do_not_allow_it_keep_their_thread(device, answers) -> None:
    device.shares_thread = False
    host = InProcessHost([device])
    host.offer(INFO)
    host.attach(ATTACHED, answers.put)
    host.put([opened(0), committed(2, 8)])
    assert not host.begin()
    assert host.finish(0.0) is None
    assert answers.get(timeout=SECONDS) == tree_of(2, 8)
    assert device.threads == ["draft-worker"]
    host.stop(SECONDS)


def test_one_that_cannot_draft_behind_a_pass_takes_nothing_from_the_others(device, answers) -> None:
    failing = Device()
    failing.name = "failing"
    read = object()
    device.follow = lambda requests, outcome: EnqueuedRound((read,))
    failing.follow = lambda requests, outcome: 1 / 0
    host = InProcessHost([device, failing])
    host.offer(INFO)
    host.attach(ATTACHED, answers.put)
    host.put([opened(0), opened(1, proposer=1)])
    for each in (device, failing):
        assert each.opened.get(timeout=SECONDS)
    values = [EnqueueRequest(Stamp(7, slot, 1, 1, 5), slot, 2, 0, 8, 4) for slot in (0, 1)]
    while not (enqueued := host.follow(values, None, SECONDS)).read:
        sleep(0.001)  # the worker's thread ends its pass
    assert list(enqueued.read) == [read]
    host.stop(SECONDS)
