"""DraftLinkService: what draft services call. Bytes come in and go out; codec gives them meaning."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import grpc

from slipstream.rpc.errors import InvalidArgumentError, NotFoundError, SlipstreamError, UnavailableError
from slipstream.rpc.server import abort
from verify_service.draft_link.attachment import OPEN_SECONDS, Attachment
from verify_service.draft_link.codec import (
    decode_attach,
    decode_replies,
    encode_attached,
    encode_commands,
    encode_link_info,
)
from verify_service.draft_link.draft_link import DraftLink
from verify_service.draft_link.peer_address import seen_address
from verify_service.draft_link.transports.base import StreamTransport

SERVICE = "slipstream.v1.DraftLinkService"
EPOCH_KEY = "slipstream-epoch"
TRANSPORT_KEY = "slipstream-transport"
REASON_KEY = "slipstream-transport-reason"
MAX_REASON = 200
MAX_EPOCH_DIGITS = 20
"""Of 64 bits."""
TEND_SECONDS = 0.02
"""How often a ring is looked after where no step does: Resume and Nack wait for no longer."""

Context = grpc.aio.ServicerContext[Any, Any]


class DraftLinkServicer:
    """Answers UNAVAILABLE until `link` is set, which happens when the model is ready."""

    def __init__(self, *, open_seconds: float = OPEN_SECONDS) -> None:
        self.link: DraftLink | None = None
        self._open_seconds = open_seconds

    def register(self, server: grpc.aio.Server) -> None:
        """Add the service to a server.

        Messages are handed over as bytes, so that one that does not parse is the sender's error and not ours.
        """
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "GetInfo": grpc.unary_unary_rpc_method_handler(self.get_info),
            "Attach": grpc.unary_unary_rpc_method_handler(self.attach),
            "Exchange": grpc.stream_stream_rpc_method_handler(self.exchange),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    async def get_info(self, _request: bytes, context: Context) -> bytes:
        """Facts a drafter needs before it attaches."""
        try:
            link = self._ready()
            return encode_link_info(link.facts, link.config.transports)
        except SlipstreamError as error:
            await abort(context, error)

    async def attach(self, request: bytes, context: Context) -> bytes:
        """Register a draft service; it is forgotten if it does not open its exchange in time."""
        try:
            link, peer = self._ready(), context.peer()
            asked = decode_attach(request)
            asked = replace(asked, address=seen_address(asked.address, peer))
            # To make a ring on a GPU takes until that has a moment.
            reply = await asyncio.to_thread(link.attach, asked, loopback=_on_loopback(peer))
        except SlipstreamError as error:
            await abort(context, error)
        asyncio.get_running_loop().call_later(self._open_seconds, link.expire, reply.epoch)
        return encode_attached(reply)

    async def exchange(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Carry records until either end leaves; the attachment ends with the call, however that ends."""
        try:
            link = self._ready()
            wake, woken = _doorbell()
            transport, reason = (_metadata(context, key)[:MAX_REASON] for key in (TRANSPORT_KEY, REASON_KEY))
            attachment = link.start(_epoch(context), wake, transport, reason)
        except SlipstreamError as error:
            await abort(context, error)
        try:
            await context.send_initial_metadata(())
            await self._carry(link, attachment, requests, context, woken)
        except SlipstreamError as error:
            link.drop(attachment, error)
            await abort(context, error)
        finally:
            link.drop(attachment, UnavailableError("the draft service has left"))
            if attachment.transport is not None:
                asyncio.get_running_loop().run_in_executor(None, attachment.transport.release)

    async def _carry(
        self,
        link: DraftLink,
        attachment: Attachment,
        requests: AsyncIterator[bytes],
        context: Context,
        woken: asyncio.Event,
    ) -> None:
        """Run both directions; return when the drafter has half-closed, raise what ends either."""
        transport = attachment.transport
        stream = transport if isinstance(transport, StreamTransport) else None

        async def receive() -> None:
            async for request in requests:
                link.receive(attachment, decode_replies(request, attachment.slots.size), len(request))
                if stream is not None:
                    stream.heard()

        async def send(stream: StreamTransport) -> None:
            while True:
                await woken.wait()
                woken.clear()
                while records := link.take(attachment):
                    await context.write(encode_commands(records))
                stream.written()
                # A step waits, awake, for what this thread reads, which does not sleep either.
                while stream.awaited and not woken.is_set():  # noqa: ASYNC110 - not to sleep is the purpose
                    await asyncio.sleep(0)

        async def tend() -> None:
            while True:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(woken.wait(), TEND_SECONDS)
                woken.clear()
                link.tend(attachment)

        tasks = (asyncio.create_task(receive()), asyncio.create_task(tend() if stream is None else send(stream)))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, SlipstreamError, grpc.aio.BaseError):
                    await task

    def _ready(self) -> DraftLink:
        if self.link is None:
            raise UnavailableError("the model is loading")
        return self.link


def _doorbell() -> tuple[Callable[[], None], asyncio.Event]:
    """A function that any thread may call, and the event it sets in this loop."""
    loop = asyncio.get_running_loop()
    woken = asyncio.Event()

    def ring() -> None:
        loop.call_soon_threadsafe(woken.set)

    return ring, woken


def _epoch(context: Context) -> int:
    value = _metadata(context, EPOCH_KEY)
    if not value:
        raise InvalidArgumentError(f"metadata {EPOCH_KEY} must name the attachment", field=EPOCH_KEY)
    if not value.isdigit() or len(value) > MAX_EPOCH_DIGITS:
        raise NotFoundError(f"metadata {EPOCH_KEY} is not an epoch", field=EPOCH_KEY)
    return int(value)


def _metadata(context: Context, key: str) -> str:
    """A text of the call's metadata; empty if it is missing or has what ASCII has not."""
    value = dict(context.invocation_metadata() or ()).get(key)
    return value if isinstance(value, str) and value.isascii() else ""


def _on_loopback(peer: str) -> bool:
    """Whether a gRPC peer name ("ipv4:127.0.0.1:4711", "ipv6:%5B::1%5D:4711", "unix:...") is of this host."""
    return peer.startswith(("ipv4:127.", "ipv6:[::1]:", "ipv6:%5B::1%5D:", "ipv6:[::ffff:127.", "unix:"))
