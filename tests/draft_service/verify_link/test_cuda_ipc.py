"""Transport `cuda_ipc`, all of it but the GPU: negotiation, states through the ring, and whose memory it is.

The test plays the verify loop, and steps that write states; a draft service takes them. Memory of the host stands in
for a GPU's where there has to be any. The state of position p is full of p modulo 100, at one boundary 100 more.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import numpy as np
import pytest
import torch

from draft_service.proposers.base import DraftRequest, Opening, Proposer
from draft_service.protocol.codec import Identity
from draft_service.protocol.placement import Placement
from draft_service.verify_link.shm_transport import ShmExchange
from draft_service.verify_link.verify_link import VerifyLink
from draft_service.worker.worker import Worker
from slipstream_kernels.ipc.device_memory import CudaMemory, DeviceMemory, DeviceMemoryError
from slipstream_kernels.token_tree import TokenTree
from support.host_device_memory import GPU_UUID, HostBlock, HostMemory
from support.played_link import KEY, opening, run, served, until
from verify_service.core.draft_source import Committed, StateChunk, StateSpan
from verify_service.draft_link.draft_link import DraftLink
from verify_service.draft_link.records import LinkFacts
from verify_service.hidden_states import device_ring_pool
from verify_service.hidden_states.device_ring_pool import DeviceRingPool
from verify_service.hidden_states.rows import HiddenStateRows

HIDDEN, CAPTURED = 16, (1, 2, 4)
FACTS = LinkFacts("model", "tokenizer", 100, HIDDEN, 4, 512, 64, feature_boundaries=tuple(range(6)), most_boundaries=3)
DRAFTER = Placement("cpu", GPU_UUID)


class Taker(Proposer):
    name, max_nodes, max_depth, feature_boundaries = "p", 8, 4, (4, 1)
    state_device = "cuda:0"

    def __init__(self) -> None:
        self.rows: list[list[float]] = []
        self.first = self.steps = 0

    def open(self, session: int, opening: Opening) -> None:
        self.rows, self.first = [], opening.cached_length

    def commit(self, session: int, token_ids: Sequence[int]) -> None:
        self.steps += 1

    def take_features(self, session: int, first_position: int, features: torch.Tensor) -> None:
        assert first_position == self.first + len(self.rows)
        self.rows += features[:, ::HIDDEN].tolist()

    def close(self, session: int) -> None:
        pass

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree | None]:
        return [TokenTree.chain((1, 2))] * len(requests)


@asynccontextmanager
async def linked(
    address: str, memory: Callable[[], DeviceMemory], placement: Placement = DRAFTER
) -> AsyncIterator[tuple[VerifyLink, Taker]]:
    taker = Taker()
    worker = Worker([taker])
    worker.start()
    identity = Identity("test", "127.0.0.1:1", os.getpid(), "0", placement)
    link = VerifyLink(address, worker, identity, memory=memory)
    task = asyncio.create_task(link.run())
    try:
        await until(lambda: link.epoch is not None)
        yield link, taker
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        worker.stop()


def rings_of(memory: HostMemory, rows: int = 64) -> DeviceRingPool:
    return DeviceRingPool(memory, max_step_rows=rows, hidden_size=HIDDEN)


class Steps:
    """A request, and steps that compute its states: on the device where the link says so, else for the host."""

    def __init__(self, link: DraftLink, prompt: int = 3) -> None:
        self.link = link
        self.length = prompt
        self.routed = 0
        link.begin(opening(tokens=tuple(range(prompt))))
        self.link.send_states([StateChunk(KEY, self._states(0, prompt - 1))])

    def commit(self, *tokens: int) -> None:
        """A step that could have accepted one token more than it did."""
        features = self._states(self.length - 1, self.length - 1 + len(tokens))
        self.length += len(tokens)
        self.link.commit([Committed(KEY, tokens, self.length, 8, 4, features)])

    def _states(self, first: int, end: int) -> HiddenStateRows:
        (spans,) = self.link.reserve_ring([StateSpan(KEY, first, end - first + 1)], CAPTURED)
        rows = np.repeat(np.arange(first, end) % 100, HIDDEN).reshape(-1, HIDDEN)
        values = {boundary: rows + 100 * (boundary == 1) for boundary in CAPTURED}
        for span in spans:
            width = span.row_bytes // 2
            side_by_side = np.concatenate([values[boundary] for boundary in span.boundaries], axis=1)
            target = span.target[span.offset : span.offset + len(rows) * width]
            target.copy_(torch.from_numpy(side_by_side).flatten().to(torch.bfloat16))
        self.routed += len(spans)
        host = torch.from_numpy(np.concatenate([*values.values()], axis=1)).to(torch.bfloat16)
        return HiddenStateRows(CAPTURED, first, host.view(torch.uint16).numpy(), spans)

    def expected(self, first: int) -> list[list[float]]:
        return [[float(position % 100), float(100 + position % 100)] for position in range(first, self.length - 1)]


async def told(steps: Steps, taker: Taker) -> None:
    await until(lambda: taker.first + len(taker.rows) >= steps.length - 1)
    assert taker.rows == steps.expected(taker.first)


def test_states_go_through_the_ring_many_times_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_ring_pool, "_ROUNDED", 4096)

    async def scenario() -> None:
        memory = HostMemory()
        async with (
            served(facts=FACTS, rings=rings_of(memory, rows=20)) as (verify, address),
            linked(address, HostMemory) as (link, taker),
        ):
            assert (link.transport, link.transport_reason) == ("cuda_ipc", "")
            await until(lambda: verify.state().attachments == 1)
            steps = Steps(verify)
            for number in range(100):
                await asyncio.to_thread(verify.collect, (KEY,))
                steps.commit(*range(5, 6 + number % 4))
                await until(lambda: taker.steps > number)  # noqa: B023 - awaited within this round
            await told(steps, taker)
            assert steps.routed == 101
            (status,) = verify.proposers()
            assert status.attachment is not None and status.attachment.ring is not None
            assert status.attachment.ring.released > 90
            assert status.attachment.ring.written > 2 * memory.blocks[0].size

    run(scenario())


def test_what_finds_no_room_is_sent_as_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_ring_pool, "_ROUNDED", 512)

    async def scenario() -> None:
        async with (
            served(facts=FACTS, rings=rings_of(HostMemory(), rows=2)) as (verify, address),
            linked(address, HostMemory) as (_, taker),
        ):
            await until(lambda: verify.state().attachments == 1)
            steps = Steps(verify)
            for _ in range(30):
                steps.commit(5, 6, 7)
            await told(steps, taker)
            assert 0 < steps.routed < 20

    run(scenario())


def no_cuda() -> DeviceMemory:
    return CudaMemory(0)


def unmapped() -> DeviceMemory:
    return HostMemory(opens=False)


class Elsewhere(HostMemory):
    """Opens memory that is not what was meant."""

    def open(self, handle: bytes, size: int, gpu_uuid: str) -> HostBlock:
        return self.allocate(size)


@pytest.mark.parametrize(
    ("memory", "placement", "theirs", "reason"),
    [
        pytest.param(no_cuda, DRAFTER, HostMemory(), "cuda", marks=pytest.mark.skipif("torch.cuda.is_available()")),
        (unmapped, DRAFTER, HostMemory(), f"{GPU_UUID} is not visible from here"),
        (Elsewhere, DRAFTER, HostMemory(), "the nonce did not come through the device's memory"),
        (HostMemory, Placement(), HostMemory(), "cuda_ipc: the draft service names no GPU"),
        (HostMemory, DRAFTER, HostMemory(allocates=False), "cudaErrorMemoryAllocation"),
        (HostMemory, DRAFTER, None, "cuda_ipc: the model runs on the CPU"),
    ],
)
def test_where_it_cannot_be_had_records_go_through_shared_memory_and_the_reason_is_told(
    memory: Callable[[], DeviceMemory], placement: Placement, theirs: HostMemory | None, reason: str
) -> None:
    async def scenario() -> None:
        rings = None if theirs is None else rings_of(theirs)
        async with (
            served(facts=FACTS, rings=rings) as (verify, address),
            linked(address, memory, placement) as (link, taker),
        ):
            await until(lambda: verify.state().attachments == 1 and link.transport == "shm")
            assert reason in link.transport_reason
            (status,) = verify.proposers()
            assert status.attachment is not None and reason in status.attachment.transport_reason
            steps = Steps(verify)
            steps.commit(5, 6)
            await told(steps, taker)
            assert steps.routed == 0

    run(scenario())


def test_a_drafter_that_releases_what_it_cannot_have_loses_its_attachment() -> None:
    async def scenario() -> None:
        async with (
            served(facts=FACTS, rings=rings_of(HostMemory())) as (verify, address),
            linked(address, HostMemory) as (link, _),
        ):
            await until(lambda: verify.state().attachments == 1)
            await until(lambda: link._worker._source is not None)
            epoch, feed = link.epoch, link._worker._source
            assert isinstance(feed, ShmExchange)

            def refused() -> bool:
                """Its own worker sets the mark right again, from time to time."""
                if feed._ends is not None:
                    feed._ends[1].set_mark(2**60)
                return verify.state().malformed == 1

            await until(refused)
            await until(lambda: link.epoch not in (None, epoch))

    run(scenario())


def test_without_a_gpu_there_is_no_memory_of_one() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(DeviceMemoryError):
        CudaMemory(0)
