"""The connection to a verify service: dial, attach, exchange, and begin again whenever it ends."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import grpc

from draft_service import codec
from draft_service.codec import Attachment, Identity
from draft_service.outbox import Outbox
from draft_service.proposers.base import Proposer
from draft_service.records import Reply
from draft_service.worker import Worker
from slipstream.rpc.channel import from_rpc_error, open_channel
from slipstream.rpc.errors import FailedPreconditionError, SlipstreamError, UnavailableError
from slipstream.v1 import draft_pb2_grpc

_log = logging.getLogger(__name__)

_CALL_TIMEOUT_S = 5.0
_FAREWELL_S = 1.0
_STEADY_S = 5.0
"""An attachment that lasted this long starts the back-off anew."""
_MAX_UNSENT = 1024
"""Replies held for a verify service that does not read."""


@dataclass(slots=True)
class Backoff:
    """Waiting times that double from `first` to `last` seconds, each shortened at random by up to a half."""

    first: float = 0.1
    last: float = 2.0
    _next: float = 0.0

    def reset(self) -> None:
        self._next = 0.0

    def take(self) -> float:
        self._next = min(self.last, self._next * 2 or self.first)
        return self._next * random.uniform(0.5, 1.0)


class VerifyLink:
    """Keeps one attachment to one verify service for as long as `run` runs."""

    __slots__ = ("_address", "_attachment", "_backoff", "_identity", "_reported", "_token", "_worker")

    def __init__(self, address: str, worker: Worker, identity: Identity, *, token: str = "") -> None:
        self._address = address
        self._worker = worker
        self._identity = identity
        self._token = token
        self._backoff = Backoff()
        self._attachment: Attachment | None = None
        self._reported = ""

    def identify(self, address: str) -> None:
        """Tell verify from now on that this service's own server listens at `address`."""
        self._identity = replace(self._identity, address=address)

    @property
    def address(self) -> str:
        """Where verify is expected."""
        return self._address

    @property
    def epoch(self) -> int | None:
        """Epoch of the present attachment, None while there is none."""
        return None if self._attachment is None else self._attachment.epoch

    async def run(self) -> None:
        """Attach and exchange until cancelled; every end is followed by another attempt after a short wait."""
        while True:
            began = time.monotonic()
            try:
                await self._attach_once()
            except grpc.RpcError as error:
                self._report(from_rpc_error(error))
            except SlipstreamError as error:
                self._report(error)
            except Exception as error:  # noqa: BLE001 (whatever it was, drafting must be tried again)
                if self._reported != repr(error):
                    _log.exception("the link to %s failed, trying again", self._address)
                self._reported = repr(error)
            if time.monotonic() - began > _STEADY_S:
                self._backoff.reset()
            await asyncio.sleep(self._backoff.take())

    async def _attach_once(self) -> None:
        channel = open_channel(self._address)
        try:
            stub: Any = draft_pb2_grpc.DraftLinkServiceStub(channel)
            target = codec.decode_target(await stub.GetInfo(codec.info_request(), timeout=_CALL_TIMEOUT_S))
            proposers = await asyncio.wrap_future(self._worker.bind(target))
            if not proposers:
                raise FailedPreconditionError(f"no proposer fits the model served at {self._address}")
            request = codec.encode_attach(self._identity, proposers, self._token)
            attachment = codec.decode_attachment(await stub.Attach(request, timeout=_CALL_TIMEOUT_S))
            await self._exchange(stub, attachment, proposers)
        finally:
            await channel.close()

    async def _exchange(self, stub: Any, attachment: Attachment, proposers: Sequence[Proposer]) -> None:
        loop = asyncio.get_running_loop()
        outbox = Outbox(_MAX_UNSENT)

        def send(replies: list[Reply]) -> None:
            loop.call_soon_threadsafe(outbox.put, replies)

        call = stub.Exchange(metadata=(("slipstream-epoch", str(attachment.epoch)),))
        self._worker.attach(attachment, proposers, send)
        self._attachment = attachment
        self._reported = ""
        _log.info("attached to %s, epoch %d: %s", self._address, attachment.epoch, ", ".join(p.name for p in proposers))
        reader = loop.create_task(self._read(call))
        writer = loop.create_task(_write(call, outbox, codec.REPLIES_PER_SLOT * attachment.num_slots))
        try:
            await asyncio.wait((reader, writer), return_when=asyncio.FIRST_EXCEPTION)
            for task in (reader, writer):
                if task.done():
                    task.result()
        except asyncio.CancelledError:
            await _say_farewell(call, reader)
            raise
        finally:
            self._attachment = None
            self._worker.detach(attachment.epoch)
            reader.cancel()
            writer.cancel()
            call.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)

    async def _read(self, call: Any) -> NoReturn:
        """Hand records to the worker; raises why the exchange has ended."""
        while (message := await call.read()) is not grpc.aio.EOF:
            self._worker.put(codec.decode_commands(message))
        status = await call.code()
        if status is not grpc.StatusCode.OK:
            raise UnavailableError(f"{status.name}: {await call.details()}")
        raise UnavailableError("verify closed the exchange")

    def _report(self, error: SlipstreamError) -> None:
        """Log the reason, once as long as it stays the same."""
        reason = f"{type(error).__name__.removesuffix('Error')}: {error.message}"
        if reason != self._reported:
            level = logging.INFO if isinstance(error, UnavailableError) else logging.ERROR
            _log.log(level, "not attached to %s, trying again: %s", self._address, reason)
            self._reported = reason


async def _write(call: Any, outbox: Outbox, most: int) -> None:
    """Send what waits, at most `most` replies a message. Returns when the call is over: its status says why."""
    with suppress(grpc.RpcError, asyncio.InvalidStateError):
        while True:
            replies = await outbox.take(most)
            await call.write(codec.encode_replies(replies))


async def _say_farewell(call: Any, reader: asyncio.Task[NoReturn]) -> None:
    """Half-close, so that verify sees an orderly end, and give it a moment to close its side."""
    with suppress(grpc.RpcError, asyncio.InvalidStateError, TimeoutError):
        async with asyncio.timeout(_FAREWELL_S):
            await call.done_writing()
            await asyncio.wait((reader,))
