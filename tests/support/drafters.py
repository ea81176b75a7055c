"""Draft services made of protobuf messages alone, as one in another language would be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from slipstream.rpc.channel import open_channel
from slipstream.v1 import draft_pb2, draft_pb2_grpc, tree_pb2
from slipstream_kernels.ipc.byte_ring import RingReader, RingWriter, open_ring, reader, writer

Answer = Callable[["WireDrafter", str, Any], Sequence[draft_pb2.DraftReply]]
"""Given the drafter, a record's kind and the record, the replies to send."""


TRANSPORT = "grpc"
"""What drafters attach with unless told otherwise."""


def tree_reply(
    stamp: tree_pb2.Stamp,
    token_ids: Sequence[int],
    parents: Sequence[int] | None = None,
    **fields: Any,
) -> draft_pb2.DraftReply:
    """A tree; a chain where no parents are given."""
    below = range(-1, len(token_ids) - 1) if parents is None else parents
    return draft_pb2.DraftReply(tree=tree_pb2.TokenTree(stamp=stamp, token_ids=token_ids, parents=below, **fields))


def offer(name: str, max_nodes: int = 64, max_depth: int = 63) -> draft_pb2.ProposerOffer:
    return draft_pb2.ProposerOffer(name=name, max_nodes=max_nodes, max_depth=max_depth)


async def attach_request(stub: draft_pb2_grpc.DraftLinkServiceStub, *names: str, **fields: Any) -> Any:
    """A request that fits the service behind `stub`, with `fields` in place of the fitting ones."""
    info = await stub.GetInfo(draft_pb2.DraftLinkServiceGetInfoRequest(), timeout=60)
    fitting: dict[str, Any] = {
        "min_version": info.min_version,
        "max_version": info.max_version,
        "proposers": [offer(name) for name in names],
        "tokenizer_fingerprint": info.tokenizer_fingerprint,
        "vocab_size": info.vocab_size,
        "transports": [TRANSPORT],
        "name": "test",
        "process_id": 1,
    }
    return draft_pb2.AttachRequest(**(fitting | fields))


@dataclass(slots=True)
class WireDrafter:
    """An attached drafter. `records` keeps (kind, record) of all that came; `error` is how its exchange ended."""

    epoch: int
    call: Any
    answer: Answer
    records: list[tuple[str, Any]] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    error: grpc.aio.AioRpcError | None = None
    rings: tuple[RingReader, RingWriter] | None = None

    async def run(self) -> None:
        """Answer records until the exchange ends."""
        try:
            async for message in self.call if self.rings is None else self._ring_messages():
                replies = []
                for command in message.commands:
                    kind = command.WhichOneof("kind")
                    record = getattr(command, kind)
                    self.records.append((kind, record))
                    replies.extend(self.answer(self, kind, record))
                self.arrived.set()
                if replies:
                    await self.send(*replies)
        except grpc.aio.AioRpcError as error:
            self.error = error
            self.arrived.set()
        except asyncio.InvalidStateError:
            return  # this end has half-closed and has nothing to answer any more

    async def send(self, *replies: draft_pb2.DraftReply) -> None:
        await self.send_message(draft_pb2.ExchangeRequest(replies=replies))

    async def send_message(self, message: draft_pb2.ExchangeRequest) -> None:
        if self.rings is None:
            await self.call.write(message)
            return
        while not self.rings[1].write(message.SerializeToString()):  # noqa: ASYNC110 (the ring tells nobody)
            await asyncio.sleep(0.001)

    async def _ring_messages(self) -> AsyncIterator[draft_pb2.ExchangeResponse]:
        """Messages from the ring until the call ends."""
        ending = asyncio.create_task(self.call.read())
        while not ending.done():
            data = self.rings[0].read(1 << 24)
            if data is None:
                await asyncio.wait((ending,), timeout=0.001)
            else:
                yield draft_pb2.ExchangeResponse.FromString(data)
        assert ending.result() is grpc.aio.EOF, "records came over the stream"
        if await self.call.code() is not grpc.StatusCode.OK:
            await self.call

    async def wait_for(self, *kinds: str, seconds: float = 60.0) -> list[Any]:
        """Wait until the kinds of the records so far are exactly these; returns the records."""
        async with asyncio.timeout(seconds):
            while len(self.records) < len(kinds):
                self.arrived.clear()
                await self.arrived.wait()
        assert tuple(kind for kind, _ in self.records) == kinds
        return [record for _, record in self.records]

    def of(self, kind: str) -> list[Any]:
        return [record for name, record in self.records if name == kind]


def silent(_drafter: WireDrafter, _kind: str, _record: Any) -> Sequence[draft_pb2.DraftReply]:
    return ()


def shake_hands(attached: draft_pb2.AttachResponse, device_nonce: bytes = b"") -> tuple[RingReader, RingWriter]:
    """Open both rings and echo the nonce, and behind it that of a ring on the GPU."""
    memory = attached.shared_memory
    into, out = (open_ring(ring.path, ring.size, memory.nonce) for ring in (memory.to_draft, memory.to_verify))
    rings = reader(into), writer(out)
    assert rings[1].write(memory.nonce + device_nonce)
    return rings


@asynccontextmanager
async def wire_drafter(
    address: str, *names: str, answer: Answer = silent, leave: bool = True, **fields: Any
) -> AsyncIterator[WireDrafter]:
    """Attach, exchange in the background, and half-close at the end unless `leave` is false (then: cancel)."""
    async with open_channel(address) as channel:
        stub = draft_pb2_grpc.DraftLinkServiceStub(channel)
        attached = await stub.Attach(await attach_request(stub, *names, **fields), timeout=60)
        rings = shake_hands(attached) if attached.transport == "shm" else None
        call = stub.Exchange(metadata=(("slipstream-epoch", str(attached.epoch)),))
        await call.initial_metadata()
        drafter = WireDrafter(attached.epoch, call, answer, rings=rings)
        running = asyncio.create_task(drafter.run())
        try:
            yield drafter
        finally:
            if leave and not call.done():
                await call.done_writing()
            else:
                call.cancel()
            await asyncio.wait((running,), timeout=5)
            if not running.done() or running.cancelled():
                running.cancel()
