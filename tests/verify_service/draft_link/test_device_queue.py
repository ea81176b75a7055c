"""Rounds behind passes, from one process to another but for CUDA: memory of the host stands in for a GPU's.

The verify loop and the draft service are real, each on threads of its own; both find what the other has written in
memory that they share, and by records of the exchange.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from draft_service.protocol.codec import Identity
from draft_service.protocol.placement import Placement
from draft_service.verify_link.device_queue import DevicePassQueue as DrafterQueue
from draft_service.verify_link.shm_transport import ShmExchange
from draft_service.verify_link.verify_link import VerifyLink
from draft_service.worker.worker import Worker
from slipstream.rpc.errors import UnavailableError
from slipstream.rpc.server import GrpcServer
from slipstream_kernels.device_queue import HEADER_WORDS, PARITIES, RESULT_WORDS, queue_bytes, queue_sides
from slipstream_kernels.draft_protocol.follow import Follow
from slipstream_kernels.draft_protocol.proposer_host import DevicePassResult, EnqueuedRound, EnqueueRequest
from slipstream_kernels.draft_protocol.records import Reply, Stamp
from slipstream_kernels.ipc.device_memory import DATA_OFFSET
from slipstream_kernels.ops.gpu.draft_trees import COUNT, LOG_PROBS, PARENTS
from slipstream_kernels.token_tree import MAX_ROWS
from support.answering_drafter import HIDDEN, NOBODYS, ROWS, VOCAB, Drafter, write_drafter
from support.host_device_memory import GPU_UUID, HostMemory
from support.request_mix import Expected, assert_equal, some_requests
from support.verify_loop import LoopRunner, Target, running_loop
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import GenerationRequest, RequestKey
from verify_service.draft_link import device_queue
from verify_service.draft_link.attachment import Attachment
from verify_service.draft_link.device_queue import DeviceQueue, QueuedRound
from verify_service.draft_link.draft_link import DraftLink
from verify_service.draft_link.draft_servicer import SERVICE, DraftLinkServicer
from verify_service.draft_link.link_config import LinkConfig
from verify_service.draft_link.records import LinkFacts
from verify_service.hidden_states.device_ring_pool import DeviceRingPool, QueueMemory

TOKENS, DEADLINE = 24, 1.0
CONFIG = EngineConfig(
    num_pages=100, max_running=4, prefill_chunk=64, step_nodes=20, max_nodes=ROWS, max_context=512, adaptive=False
)
FACTS = LinkFacts("m", "", VOCAB, HIDDEN, 2, 512, ROWS, feature_boundaries=(0, 1, 2, 3), most_boundaries=3)
SEEDED = pytest.mark.parametrize("work", [0.8], ids=["seeded"], indirect=True)
Work = tuple[list[GenerationRequest], list[Expected]]


Attack = Callable[[DrafterQueue, Follow, EnqueuedRound], None]


class Served(NamedTuple):
    runner: LoopRunner
    link: DraftLink
    worker: Worker
    attachment: Attachment


@pytest.fixture(scope="module")
def head(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_drafter(tmp_path_factory.mktemp("eagle") / "head")


@pytest.fixture(scope="module", params=[0.0, 0.8], ids=["greedy", "seeded"])
def work(request: pytest.FixtureRequest, twins: Target) -> Work:
    """Requests, and what they are answered without drafters."""
    requests = [
        replace(one, sampling=replace(one.sampling, logprobs=None)) for one in some_requests(request.param, TOKENS)
    ]
    with running_loop(twins, CONFIG) as runner:
        answers = runner.run(requests)
    expected: list[Expected] = []
    for answer in answers:
        assert answer.finish_reason is not None
        expected.append((answer.token_ids, (), answer.finish_reason))
    return requests, expected


@contextmanager
def event_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop on a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def served(
    twins: Target, drafter: Drafter, *, mps: bool = True, gpu_uuid: str = GPU_UUID, **config: object
) -> Iterator[Served]:
    """A loop with the drafter attached through shared memory. At the end no session is left."""
    rings = DeviceRingPool(HostMemory(), max_step_rows=100, hidden_size=HIDDEN, mps=True)
    link = DraftLink(FACTS, LinkConfig(**({"deadline": 30.0} | config)), rings=rings)  # type: ignore[arg-type]
    worker = Worker([drafter])
    worker.start()
    identity = Identity("test", "", os.getpid(), "0", Placement("cpu:0", gpu_uuid, mps))
    with event_loop() as loop:

        async def start() -> tuple[GrpcServer, asyncio.Task[None]]:
            servicer = DraftLinkServicer()
            servicer.link = link
            server = GrpcServer(host="127.0.0.1", port=0, services=[SERVICE], register=servicer.register)
            address = f"127.0.0.1:{await server.start()}"
            return server, asyncio.create_task(VerifyLink(address, worker, identity, memory=HostMemory).run())

        async def end(server: GrpcServer, drafting: asyncio.Task[None]) -> None:
            drafting.cancel()
            await asyncio.gather(drafting, return_exceptions=True)
            await server.drain(1)

        server, drafting = asyncio.run_coroutine_threadsafe(start(), loop).result()
        runner = LoopRunner(twins, CONFIG, link)
        runner.loop.start()
        try:
            yield Served(runner, link, worker, attached(link))
        finally:
            runner.loop.stop()
            link.close()
            asyncio.run_coroutine_threadsafe(end(server, drafting), loop).result()
            worker.stop(30.0)
    assert not drafter.texts


def attached(link: DraftLink, but: Attachment | None = None) -> Attachment:
    """The attachment, or another one, once it is there."""
    while not (status := link.proposers()) or status[0].attachment in (None, but):
        threading.Event().wait(0.01)
    assert status[0].attachment is not None
    return status[0].attachment


def texts_of(work: Work) -> list[tuple[int, ...]]:
    return [request.prompt_token_ids + tokens for request, (tokens, _, _) in zip(*work, strict=True)]


@pytest.mark.parametrize(
    ("at_once", "gpu_uuid", "mps"),
    [(1, GPU_UUID, True), (0, GPU_UUID, True), (0, "GPU-another", False)],
    ids=["alone", "together", "on another GPU"],
)
def test_passes_verify_trees_that_came_behind_the_one_before(
    twins: Target,
    head: Path,
    tiny_model: Path,
    work: Work,
    at_once: int,
    gpu_uuid: str,
    mps: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replies: list[Reply] = []
    send = ShmExchange.send

    def count(exchange: ShmExchange, sent: Sequence[Reply]) -> None:
        replies.extend(sent)
        send(exchange, sent)

    monkeypatch.setattr(ShmExchange, "send", count)
    drafter = Drafter(head, tiny_model)
    drafter.answers = texts_of(work)
    with served(twins, drafter, gpu_uuid=gpu_uuid, mps=mps) as (runner, link, _, attachment):
        assert attachment.queue is not None
        assert attachment.overlap == "drafts behind the pass, on the device"
        assert_equal(runner.run(work[0], at_once), work[1])
        assert runner.loop.state().accepted_tokens > 20
        state = link.state()
        assert state.misses == state.malformed == 0
    assert drafter.taken > 10
    stats = state.drafters[0].stats
    assert stats.handed > 0.6 * drafter.taken
    assert len(replies) < stats.hits - 0.6 * stats.handed, "what a step has already is not sent"


def rows_written(queue: DrafterQueue, record: Follow) -> torch.Tensor:
    """Headers as they must be, int32 [requests, TREE_WORDS], where verify looks for them."""
    rows = queue.sides[record.number % PARITIES].trees[: len(record.values)]
    for row, (value, words) in enumerate(zip(record.values, rows, strict=True)):
        stamp = value.stamp
        words[:5] = torch.tensor([record.number, stamp.slot, stamp.generation, stamp.base_length, stamp.root_token])
        assert value.row == row
    return rows


def write_word(queue: DrafterQueue, record: Follow, number: int) -> None:
    queue.sides[record.number % PARITIES].drafted.fill_(number)


def never(queue: DrafterQueue, record: Follow, enqueued: EnqueuedRound) -> None:
    """The word never comes."""


def wrong_word(queue: DrafterQueue, record: Follow, enqueued: EnqueuedRound) -> None:
    write_word(queue, record, record.number + 2)


def word_without_data(queue: DrafterQueue, record: Follow, enqueued: EnqueuedRound) -> None:
    write_word(queue, record, record.number)


def counts_beyond(queue: DrafterQueue, record: Follow, enqueued: EnqueuedRound) -> None:
    rows_written(queue, record)[:, HEADER_WORDS + COUNT] = 2**31 - 1
    write_word(queue, record, record.number)


def noise(queue: DrafterQueue, record: Follow, enqueued: EnqueuedRound) -> None:
    rows = queue.sides[record.number % PARITIES].trees[: len(record.values)]
    rows.random_(-(2**31), 2**31 - 1)
    rows_written(queue, record)
    write_word(queue, record, record.number)


def changing(queue: DrafterQueue, record: Follow, enqueued: EnqueuedRound) -> None:
    """Trees that are written over while they may be read, in part by legal ones."""
    rows = rows_written(queue, record)[:, HEADER_WORDS:]

    def scribble() -> None:
        for turn in range(300):
            rows[:, COUNT] = 1 + turn % 2
            rows[:, :2] = NOBODYS if turn % 3 else 2**30
            rows[:, PARENTS : PARENTS + 2] = turn % 5 - 2

    rows[:, : LOG_PROBS + MAX_ROWS] = 0
    scribbling = threading.Thread(target=scribble)
    scribbling.start()
    write_word(queue, record, record.number)
    scribbling.join()


def fails(queue: DrafterQueue, record: Follow, enqueued: EnqueuedRound) -> None:
    raise RuntimeError("a proposer's device")


@pytest.mark.parametrize(
    "attack",
    [never, wrong_word, word_without_data, counts_beyond, noise, changing, fails],
    ids=lambda each: each.__name__,
)
@SEEDED
def test_whatever_a_drafter_writes_tokens_are_those_of_plain_decoding(
    twins: Target, head: Path, tiny_model: Path, work: Work, attack: Attack, monkeypatch: pytest.MonkeyPatch
) -> None:
    attacks = 0
    words: list[bool] = []
    on_word = DeviceQueue.on_word

    def note(queue: DeviceQueue, now: float, *, in_time: bool) -> None:
        words.append(in_time)
        on_word(queue, now, in_time=in_time)

    monkeypatch.setattr(DeviceQueue, "on_word", note)
    for name in ("FIRST_BACKOFF", "LAST_BACKOFF"):
        monkeypatch.setattr(device_queue, name, 1000.0)

    def publish(queue: DrafterQueue, record: Follow, enqueued: EnqueuedRound) -> None:
        nonlocal attacks
        attacks += 1
        attack(queue, record, enqueued)

    monkeypatch.setattr(DrafterQueue, "publish", publish)
    drafter = Drafter(head, tiny_model)
    drafter.answers = texts_of(work)
    with served(twins, drafter, deadline=DEADLINE) as (runner, link, _, attachment):
        assert attachment.queue is not None
        assert_equal(runner.run(work[0], 0), work[1])
        state = link.state()
    assert attacks > 0
    if attack in (counts_beyond, noise):
        assert state.malformed > 0
        assert attachment.ended is not None
    if attack in (never, fails):
        assert words.count(False) == 2, "two deadlines, and then nothing"
    if attack is wrong_word:
        assert 1 <= words.count(False) <= 2, "it is that of a later pass, which has no trees then"
    if attack in (never, wrong_word, fails):
        assert state.misses > 0
    if attack is word_without_data:
        assert (state.misses, state.malformed) == (0, 0)
        assert state.drafters[0].stats.unmade > 0


@SEEDED
def test_a_word_that_comes_early_brings_no_trees_of_another_pass(
    twins: Target, head: Path, tiny_model: Path, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = DrafterQueue.outcome

    def early(queue: DrafterQueue, record: Follow) -> DevicePassResult:
        write_word(queue, record, record.number)
        return outcome(queue, record)

    monkeypatch.setattr(DrafterQueue, "outcome", early)
    drafter = Drafter(head, tiny_model)
    drafter.answers = texts_of(work)
    with served(twins, drafter) as (runner, link, _, _):
        assert_equal(runner.run(work[0], 0), work[1])
        assert link.state().malformed == 0


@SEEDED
def test_a_drafter_leaves_with_a_pass_under_way(
    twins: Target, head: Path, tiny_model: Path, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is back for later requests, with memory that the first attachment does not use any more."""
    left: list[threading.Thread] = []

    def publish(queue: DrafterQueue, record: Follow, enqueued: EnqueuedRound) -> None:
        if not left:
            left.append(threading.Thread(target=link.drop, args=(attachment, UnavailableError("it leaves"))))
            left[0].start()
        else:
            published(queue, record, enqueued)

    published = DrafterQueue.publish
    monkeypatch.setattr(DrafterQueue, "publish", publish)
    drafter = Drafter(head, tiny_model)
    drafter.answers = texts_of(work)
    with served(twins, drafter, deadline=DEADLINE) as (runner, link, _, attachment):
        assert_equal(runner.run(work[0], 0), work[1])
        left[0].join()
        attached(link, but=attachment)
        behind = drafter.behind
        again = [replace(one, key=RequestKey(1, i)) for i, one in enumerate(work[0])]
        assert_equal(runner.run(again, 0), work[1])
        assert drafter.behind > behind


@pytest.mark.parametrize(
    ("mps", "config", "why"),
    [
        (False, {}, "the processes take turns on the GPU; they would share it under NVIDIA MPS"),
        (True, {"device_queue": False}, "the device's queue is turned off"),
    ],
    ids=["time slicing", "off"],
)
@SEEDED
def test_where_there_is_no_queue_the_host_is_between_pass_and_draft(
    twins: Target, head: Path, tiny_model: Path, work: Work, mps: bool, config: dict[str, bool], why: str
) -> None:
    drafter = Drafter(head, tiny_model)
    drafter.answers = texts_of(work)
    with served(twins, drafter, mps=mps, **config) as (runner, _, _, attachment):
        assert attachment.queue is None
        assert attachment.overlap == f"drafts after the pass: {why}"
        assert_equal(runner.run(work[0], 0), work[1])
        assert runner.loop.state().accepted_tokens > 20
    assert drafter.behind == 0


def test_trees_that_nobody_has_read_yet_outlive_those_taken_behind_them() -> None:
    memory = QueueMemory(HostMemory().allocate(DATA_OFFSET + queue_bytes(2)), b"", 2)
    queue = DeviceQueue(memory, VOCAB)
    results = DevicePassResult(torch.zeros(2, RESULT_WORDS, dtype=torch.int32), torch.zeros(0), None)
    rounds: list[QueuedRound] = []
    for number in (1, 2):
        stamps = [Stamp(1, slot, 7, 10 * number, 5) for slot in range(2)]
        asked = [EnqueueRequest(stamp, row, 1, 0, 4, 3) for row, stamp in enumerate(stamps)]
        drafted = queue.follow(asked, results, 1.0, lambda _: True).trees[0].trees
        assert isinstance(drafted, QueuedRound)
        side = queue_sides(memory.block.numbers(), 2)[number % PARITIES]
        header = torch.tensor([[number, slot, 7, 10 * number, 5] for slot in range(2)])
        side.trees[:, :5] = header
        side.trees[:, HEADER_WORDS] = torch.tensor([10, 11]) * number
        side.trees[:, HEADER_WORDS + PARENTS] = -1
        side.trees[:, HEADER_WORDS + COUNT] = 1
        side.drafted.fill_(number)
        assert drafted.queue()[:, 0].tolist() == [10 * number, 11 * number]
        rounds.append(drafted)
    for number, drafted in enumerate(rounds, 1):
        assert [drafted.read(row).token_ids for row in range(2)] == [(10 * number,), (11 * number,)]
