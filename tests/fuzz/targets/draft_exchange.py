"""Attach and Exchange as calls: metadata, peers and messages in the order that a drafter likes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import ClassVar

import grpc

from fuzz.draft_records import Guess, attach
from fuzz.messages import made
from fuzz.raw_bytes import joined, mutated, parted
from fuzz.rpc_context import Aborted, CallContext, check_code
from fuzz.target import BrokenError, Target
from fuzz.watch import all_tasks
from slipstream.v1 import draft_pb2
from support.played_link import FACTS
from verify_service.draft_link.attachment import MAX_ATTACHMENTS
from verify_service.draft_link.draft_link import DraftLink
from verify_service.draft_link.draft_servicer import EPOCH_KEY, REASON_KEY, TRANSPORT_KEY, DraftLinkServicer
from verify_service.draft_link.link_config import LinkConfig

_OPEN_SECONDS = 0.005
_REFUSALS = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.UNAVAILABLE,
)
_EPOCHS = ("{}",) * 6 + ("", "0", "1", "-1", "\u0663", "1e3", "9" * 19, "9" * 21, "9" * 5000, "{} ", "0x{}", "\u00e9")
_TRANSPORTS = ("grpc", "grpc", "", "shm", "cuda_ipc", "x" * 300, "\u00e9")
_PEERS = ("ipv4:127.0.0.1:4711", "ipv4:127.0.0.1:4711", "ipv6:[::1]:4711", "unix:", "ipv4:10.0.0.1:1", "", "\u00e9")
_TOKENS = ("", "", "secret", "secret2", "\u00e9")


class DraftExchange(Target):
    """Each call ends with a status that says what was wrong; nothing stays attached."""

    name: ClassVar[str] = "draft_exchange"
    share: ClassVar[int] = 30

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(1))  # one that grows would look like threads that are left
        self._servicer = DraftLinkServicer(open_seconds=_OPEN_SECONDS)
        config = LinkConfig(deadline=1e-6, num_slots=4, spin=0.0, attach_token="secret")
        self._link = self._servicer.link = DraftLink(FACTS, config)

    def make(self, random: Random) -> bytes:
        """A peer, metadata, an AttachRequest and the messages of the exchange."""
        request = attach(random)
        request.token = random.choice(_TOKENS)
        data = request.SerializeToString()
        if random.random() < 0.4:
            data = made(random, [attach]) if random.random() < 0.5 else mutated(random, data)
        guess = Guess(random)
        messages = [made(random, [guess.replies]) for _ in range(random.choice((0, 1, 2, 5)))]
        texts = [random.choice(choice).encode() for choice in (_PEERS, _EPOCHS, _TRANSPORTS, _TOKENS)]
        return joined([*texts, data, *messages])

    def check(self, data: bytes) -> None:
        self._loop.run_until_complete(asyncio.wait_for(self._calls(parted(data)), 60))

    def settle(self) -> None:
        async def rest() -> None:
            await asyncio.sleep(4 * _OPEN_SECONDS)

        self._loop.run_until_complete(rest())
        if len(all_tasks(self._loop)) or self._link.state().attachments or self._link._router.attachments:
            raise BrokenError(f"left: {all_tasks(self._loop)} {self._link.state()}")

    def close(self) -> None:
        self._link.close()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    async def _calls(self, parts: list[bytes]) -> None:
        peer, epoch, transport, reason, request = [*parts, b"", b"", b"", b"", b""][:5]
        while len(self._link._router.attachments) > MAX_ATTACHMENTS // 2:  # noqa: ASYNC110 - which expire
            await asyncio.sleep(_OPEN_SECONDS)
        context = CallContext(peer=peer.decode("utf-8", "replace"))
        granted = ""
        try:
            granted = str(draft_pb2.AttachResponse.FromString(await self._servicer.attach(request, context)).epoch)
        except Aborted:
            check_code(context, _REFUSALS)
        metadata = ((EPOCH_KEY, epoch), (TRANSPORT_KEY, transport), (REASON_KEY, reason))
        texts = [(key, value.decode("utf-8", "replace").replace("{}", granted)) for key, value in metadata]
        context = CallContext(texts, peer.decode("utf-8", "replace"))
        try:
            await self._servicer.exchange(_messages(parts[5:]), context)
        except Aborted:
            check_code(context, _REFUSALS)


async def _messages(parts: list[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part
