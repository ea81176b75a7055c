"""Where the head runs: on the loop's own thread, or in a draft service, whose threads are this process's here."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

from benchmarks.host_cost.silent_device import DEVICE, PROPOSER
from benchmarks.lib.link_server import link_servers
from draft_service.in_process import InProcessHost
from draft_service.proposers.base import Proposer
from draft_service.protocol.codec import Identity
from draft_service.protocol.placement import Placement
from draft_service.verify_link.verify_link import VerifyLink
from draft_service.worker.worker import Worker
from slipstream_kernels.ipc.device_memory import DATA_OFFSET, TensorBlock
from slipstream_kernels.models.capture_layers import boundaries_of
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from verify_service.core.engine_config import EngineConfig
from verify_service.draft_link.attachment import Attachment
from verify_service.draft_link.codec import decode_attach, encode_attached, encode_link_info
from verify_service.draft_link.draft_link import DraftLink
from verify_service.draft_link.link_config import LinkConfig
from verify_service.draft_link.records import AttachReply, LinkFacts
from verify_service.draft_link.transports.in_process import InProcessTransport
from verify_service.hidden_states.device_ring_pool import DeviceRingPool, ring_here

IN_PROCESS, SERVICE = "in process", "service"
FORMS: Final = (IN_PROCESS, SERVICE)
DEADLINE_SECONDS: Final = 1.0
_UUID = "GPU-of-the-host"
_START_SECONDS, _STOP_SECONDS = 60.0, 10.0


class SharedBlock:
    """A `DeviceBlock` in this process's memory."""

    gpu_uuid = _UUID

    def __init__(self, handle: bytes, block: TensorBlock) -> None:
        self.handle = handle
        self.size = block.size
        self._block = block
        self._nonce = b""

    def numbers(self) -> torch.Tensor:
        return self._block.numbers()

    def write_nonce(self, nonce: bytes) -> None:
        self._block.numbers().zero_()
        self._nonce = nonce

    def read_nonce(self, size: int) -> bytes:
        return self._nonce[:size].ljust(size, b"\0")

    def close(self) -> None:
        return None


class SharedMemory:
    """A `DeviceMemory` whose blocks two threads open in place of two processes."""

    def __init__(self) -> None:
        self._blocks: dict[bytes, SharedBlock] = {}

    def allocate(self, size: int) -> SharedBlock:
        handle = len(self._blocks).to_bytes(8, "little")
        self._blocks[handle] = SharedBlock(handle, TensorBlock(max(size, DATA_OFFSET), "cpu"))
        return self._blocks[handle]

    def open(self, handle: bytes, size: int, gpu_uuid: str) -> SharedBlock:
        return self._blocks[handle]


def facts_of(model: ModelConfig, config: EngineConfig) -> LinkFacts:
    """What a draft service is told of the model."""
    return LinkFacts(
        model_fingerprint="m",
        tokenizer_fingerprint="",
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        num_layers=model.num_layers,
        max_context=config.max_context,
        max_nodes=config.max_nodes,
        feature_boundaries=tuple(boundaries_of(model.num_layers)),
        most_boundaries=3,
    )


def step_rows(config: EngineConfig) -> int:
    """Rows that a step has at most."""
    return config.prefill_chunk + config.max_running + config.step_nodes


@contextmanager
def linked(form: str, facts: LinkFacts, config: EngineConfig, head: Proposer) -> Iterator[DraftLink]:
    """A link to the head in one of `FORMS`."""
    with in_process(facts, config, head) if form == IN_PROCESS else service(facts, config, head) as link:
        yield link


@contextmanager
def in_process(facts: LinkFacts, config: EngineConfig, head: Proposer) -> Iterator[DraftLink]:
    """As `attach_host` does where the model's device and the head's are one GPU."""
    link = DraftLink(facts, LinkConfig(deadline=DEADLINE_SECONDS, num_slots=2 * config.max_running))
    host = InProcessHost([head])
    request = decode_attach(host.offer(encode_link_info(facts, ("inproc",))))
    ring = ring_here("cpu", 3, max_step_rows=step_rows(config), hidden_size=facts.hidden_size)

    def connect(attachment: Attachment, reply: AttachReply) -> InProcessTransport:
        transport = InProcessTransport(link, attachment, host, ring)
        attachment.ring, attachment.follow = ring, host.follow
        host.attach(encode_attached(reply), transport.take, ring.block)
        return transport

    link.attach_here(request, connect)
    try:
        yield link
    finally:
        link.close()
        host.stop(_STOP_SECONDS)


@contextmanager
def service(facts: LinkFacts, config: EngineConfig, head: Proposer) -> Iterator[DraftLink]:
    """By `cuda_ipc` with a device queue: records in shared memory, states and trees in the device's."""
    memory = SharedMemory()
    rings = DeviceRingPool(memory, max_step_rows=step_rows(config), hidden_size=facts.hidden_size, mps=True)
    slots = 2 * config.max_running
    link = DraftLink(facts, LinkConfig(deadline=DEADLINE_SECONDS, num_slots=slots), rings=rings)
    worker = Worker([head])
    worker.start()
    identity = Identity("host cost", "", os.getpid(), "0", Placement(DEVICE, _UUID, mps=True))
    with link_servers(1) as (server,), server.serve(link):
        dialling = VerifyLink(f"127.0.0.1:{server.port}", worker, identity, memory=lambda: memory)
        with _on_a_loop(dialling):
            _wait_for(link)
            try:
                yield link
            finally:
                link.close()
    worker.stop(_STOP_SECONDS)


def _wait_for(link: DraftLink) -> None:
    until = time.monotonic() + _START_SECONDS
    while not link.known(PROPOSER):
        if time.monotonic() > until:
            raise RuntimeError("the draft service did not attach")
        time.sleep(0.02)


@contextmanager
def _on_a_loop(dialling: VerifyLink) -> Iterator[None]:
    events = asyncio.new_event_loop()
    thread = threading.Thread(target=events.run_forever, name="draft-link", daemon=True)
    thread.start()
    run = asyncio.run_coroutine_threadsafe(dialling.run(), events)
    try:
        yield
    finally:
        run.cancel()
        events.call_soon_threadsafe(events.stop)
        thread.join()
