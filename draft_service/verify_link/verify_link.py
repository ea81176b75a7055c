"""The connection to a verify service: dial, attach, exchange, and begin again whenever it ends."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import grpc

from draft_service.proposers.base import CPU, Proposer
from draft_service.protocol import codec
from draft_service.protocol.codec import CUDA_IPC, GRPC, AttachGrant, Identity
from draft_service.protocol.records import Record
from draft_service.verify_link.grpc_transport import GrpcRecordSource
from draft_service.verify_link.hidden_state_ring import HiddenStateRing
from draft_service.verify_link.reconnect_policy import Attempts
from draft_service.verify_link.reply_queue import ReplyQueue
from draft_service.verify_link.shm_transport import ShmExchange
from draft_service.worker.worker import Worker
from slipstream.rpc.channel import from_rpc_error, open_channel
from slipstream.rpc.errors import DeadlineExceededError, FailedPreconditionError, SlipstreamError, UnavailableError
from slipstream.rpc.tls import Tls
from slipstream.v1 import draft_pb2_grpc
from slipstream_kernels.draft_protocol.records import Reply, TrafficWeight
from slipstream_kernels.ipc.device_memory import CudaMemory, DeviceMemory, DeviceMemoryError

if TYPE_CHECKING:
    from draft_service.verify_link.device_queue import DevicePassQueue

_log = logging.getLogger(__name__)

_CALL_TIMEOUT_S = 5.0
_FAREWELL_S = 1.0
_STEADY_S = 5.0
"""An attachment that lasted this long starts the back-off anew."""
_MAX_UNSENT = 1024
"""Replies held for a verify service that does not read."""
STARTING_SECONDS = 10.0
"""How long a verify service that was not there yet may be away before a line is due."""
AWAKE_CPUS = 4
"""So many must the process have to stay awake over a stream: two threads keep one each, and others have work to do."""


@dataclass(frozen=True, slots=True)
class _Exchange:
    """An open exchange: the call, its epoch, and the future that fails when it must end for a reason of this end."""

    call: Any
    attachment: AttachGrant
    failed: asyncio.Future[NoReturn]


class VerifyLink:
    """Keeps one attachment to one verify service for as long as `run` runs."""

    __slots__ = (
        "_address",
        "_attachment",
        "_attempts",
        "_avoided",
        "_identity",
        "_memory",
        "_patient_until",
        "_share",
        "_spin",
        "_stays_awake",
        "_tls",
        "_token",
        "_transport",
        "_transport_reason",
        "_transports",
        "_unfit",
        "_worker",
    )

    def __init__(
        self,
        address: str,
        worker: Worker,
        identity: Identity,
        *,
        token: str = "",
        transports: Sequence[str] = codec.TRANSPORTS,
        share: float | None = None,
        memory: Callable[[], DeviceMemory] | None = None,
        spin: float = 0.0,
        tls: Tls | None = None,
    ) -> None:
        """`memory` is how states on verify's GPU are reached, by default from the GPU of the placement.

        spin: that of `ShmExchange` and `GrpcRecordSource`.
        """
        self._memory = memory or partial(CudaMemory, identity.placement.gpu_index)
        self._spin = spin
        self._tls = tls
        self._stays_awake = bool(spin) and len(os.sched_getaffinity(0)) >= AWAKE_CPUS
        self._address = address
        self._worker = worker
        self._identity = identity
        self._token = token
        self._transports = tuple(transports)
        self._share = share
        self._avoided: dict[str, str] = {}
        self._attempts = Attempts(_log)
        self._unfit: Mapping[str, str] = {}
        self._attachment: AttachGrant | None = None
        self._transport = self._transport_reason = ""
        self._patient_until = time.monotonic() + STARTING_SECONDS

    def identify(self, address: str) -> None:
        """Tell verify from now on that this service's own server listens at `address`."""
        self._identity = replace(self._identity, address=address)

    def set_share(self, share: float) -> None:
        """Take this part of the requests, from now on and at each later attachment."""
        self._share = share
        if self._attachment is not None:
            self._worker.send(TrafficWeight(share))

    @property
    def address(self) -> str:
        """Where verify is expected."""
        return self._address

    @property
    def epoch(self) -> int | None:
        """Epoch of the present attachment, None while there is none."""
        return None if self._attachment is None else self._attachment.epoch

    @property
    def transport(self) -> str:
        """How records of the present attachment travel; empty while there is none."""
        return "" if self._attachment is None else self._transport

    @property
    def transport_reason(self) -> str:
        """Why they do not travel in the best way; empty if they do."""
        return "" if self._attachment is None else self._transport_reason

    @property
    def refusal(self) -> str:
        """Why there is no attachment; empty while there is one, and before the first attempt has failed."""
        return "" if self._attachment is not None else self._attempts.reason

    async def run(self) -> None:
        """Attach and exchange until cancelled; every end is followed by another attempt after a short wait."""
        while True:
            began, self._transport = time.monotonic(), ""
            try:
                await self._attach_once()
                pause = self._failed(UnavailableError("the exchange is over"))
            except grpc.RpcError as error:
                pause = self._failed(from_rpc_error(error))
            except SlipstreamError as error:
                pause = self._failed(error)
            except Exception as error:  # noqa: BLE001 (whatever it was, drafting must be tried again)
                what = f"the link to {self._address} failed"
                pause = self._attempts.failed(what, repr(error), level=logging.ERROR, refused=False, trace=True)
            if time.monotonic() - began > _STEADY_S:
                self._attempts.steady()
            await asyncio.sleep(pause)

    async def _attach_once(self) -> None:
        channel = open_channel(self._address, tls=self._tls)
        avoided, self._avoided = self._avoided, {}
        try:
            stub: Any = draft_pb2_grpc.DraftLinkServiceStub(channel)
            info = await stub.GetInfo(codec.info_request(), timeout=_CALL_TIMEOUT_S)
            binding = await asyncio.wrap_future(self._worker.bind(codec.decode_target(info)))
            proposers, transports = binding.fitting, self._offered(binding.fitting)
            request = codec.encode_attach(
                self._identity, proposers, self._token, transports, self._share, binding.unfit
            )
            if not proposers:
                with suppress(grpc.RpcError):  # it is refused, but operators can see there why
                    await stub.Attach(request, timeout=_CALL_TIMEOUT_S)
                raise FailedPreconditionError(f"no proposer fits the model: {_reasons(binding.unfit)}")
            answer = await stub.Attach(request, timeout=_CALL_TIMEOUT_S)
            attachment = codec.decode_attachment(answer, transports)
            common = [name for name in codec.decode_transports(info) if name in transports]
            if binding.unfit and binding.unfit != self._unfit:
                _log.error("not offered, as they do not fit the model: %s", _reasons(binding.unfit))
            self._unfit = binding.unfit
            await self._exchange(stub, attachment, proposers, common[common.index(attachment.transport) :], avoided)
        finally:
            await channel.close()

    def _offered(self, proposers: Sequence[Proposer]) -> tuple[str, ...]:
        """The transports, without that for states on a GPU where no proposer takes any there."""
        on_gpu = any(proposer.feature_boundaries and proposer.state_device != CPU for proposer in proposers)
        return tuple(name for name in self._transports if on_gpu or name != CUDA_IPC)

    async def _exchange(
        self,
        stub: Any,
        attachment: AttachGrant,
        proposers: Sequence[Proposer],
        transports: Sequence[str],
        avoided: dict[str, str],
    ) -> None:
        """Exchange over the first of `transports` that opens and is not to be avoided."""
        failed: asyncio.Future[NoReturn] = asyncio.get_running_loop().create_future()
        transport, shared, reasons = self._open(attachment, transports, avoided, _in_loop(failed))
        given = [attachment.transport_reason] if attachment.transport_reason else []
        self._transport = transport
        self._transport_reason = "; ".join((*given, *(f"{name}: {why}" for name, why in reasons.items())))
        call = stub.Exchange(metadata=codec.exchange_metadata(attachment, transport, self._transport_reason))
        exchange = _Exchange(call, attachment, failed)
        self._attachment = attachment
        self._attempts.succeeded()
        self._patient_until = 0.0
        level = logging.WARNING if self._transport_reason else logging.INFO
        names = ", ".join(p.name for p in proposers)
        suffix = f" (not by {self._transport_reason})" if self._transport_reason else ""
        where = f"{self._address}, epoch {attachment.epoch}, by {transport}"
        _log.log(level, "attached to %s: %s%s", where, names, suffix)
        try:
            await self._carry(exchange, proposers, shared)
        except grpc.aio.AioRpcError as error:
            if shared is not None and error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                # Verify does not see it; the next attachment goes without, and the one after that tries again.
                self._avoided = {transport: str(error.details())}
            raise
        finally:
            self._attachment = None
            self._worker.detach(attachment.epoch)
            if not failed.cancel():
                failed.exception()
            call.cancel()

    async def _carry(self, exchange: _Exchange, proposers: Sequence[Proposer], shared: ShmExchange | None) -> None:
        """Run until either direction ends; raises why."""
        loop = asyncio.get_running_loop()
        outbox = ReplyQueue(_MAX_UNSENT)
        attachment = exchange.attachment
        feed = GrpcRecordSource(self._spin) if shared is None and self._stays_awake else None

        def send(replies: list[Reply]) -> None:
            loop.call_soon_threadsafe(outbox.put, replies)
            if feed is not None:
                feed.answered()

        if shared is None:
            self._worker.attach(attachment, proposers, send, feed)
        else:
            self._worker.attach(attachment, proposers, shared.send, shared, shared.queue)
        reader = loop.create_task(self._read(exchange.call, self._worker.put if feed is None else feed.put))
        writer = loop.create_task(_write(exchange.call, outbox, attachment.replies_per_message, feed))
        try:
            await asyncio.wait((reader, writer, exchange.failed), return_when=asyncio.FIRST_EXCEPTION)
            for task in (exchange.failed, reader, writer):
                if task.done():
                    task.result()
        except asyncio.CancelledError:
            await _say_farewell(exchange.call, reader)
            raise
        finally:
            reader.cancel()
            writer.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)

    @staticmethod
    async def _read(call: Any, put: Callable[[Sequence[Record]], None]) -> NoReturn:
        """Hand records over; raises why the exchange has ended."""
        while (message := await call.read()) is not grpc.aio.EOF:
            put(codec.decode_commands(message))
        status = await call.code()
        if status is not grpc.StatusCode.OK:
            raise UnavailableError(f"{status.name}: {await call.details()}")
        raise UnavailableError("verify closed the exchange")

    def _open(
        self,
        attachment: AttachGrant,
        transports: Sequence[str],
        avoided: Mapping[str, str],
        fail: Callable[[SlipstreamError], None],
    ) -> tuple[str, ShmExchange | None, dict[str, str]]:
        """The first transport that opens, its shared memory if it has any, and why not each one before it.

        FailedPreconditionError if none opens.
        """
        reasons: dict[str, str] = {}
        for transport in transports:
            if transport in avoided:
                reasons[transport] = avoided[transport]
            elif transport == GRPC:
                return transport, None, reasons
            else:
                try:
                    open_states = partial(self._open_states, attachment) if transport == CUDA_IPC else None
                    open_queue = partial(self._open_queue, attachment)
                    exchange = ShmExchange(attachment, fail, open_states, spin=self._spin, open_queue=open_queue)
                    return transport, exchange, reasons
                except FailedPreconditionError as error:
                    reasons[transport] = error.message
        raise FailedPreconditionError("; ".join(f"{name}: {reason}" for name, reason in reasons.items()))

    def _open_states(self, attachment: AttachGrant) -> HiddenStateRing:
        """The ring on verify's GPU. DeviceMemoryError if that cannot be reached."""
        if attachment.device_ring is None:
            raise DeviceMemoryError("verify named no memory of a GPU")
        return HiddenStateRing.open(attachment.device_ring, self._memory(), self._identity.placement.device)

    def _open_queue(self, attachment: AttachGrant, states: HiddenStateRing) -> DevicePassQueue | None:
        """The queue on verify's GPU, where kernels of the proposers' own reach it; what fails costs no more."""
        address, device = attachment.device_queue, str(states.numbers.device)
        if address is None or device not in (CPU, self._identity.placement.device):
            return None
        from draft_service.verify_link.device_queue import DevicePassQueue  # with Triton, which others do without

        try:
            return DevicePassQueue.open(address, self._memory(), states)
        except Exception:  # noqa: BLE001 - without it rounds begin after passes, as ever
            _log.exception("the device's queue cannot be used")
            return None

    def _failed(self, error: SlipstreamError) -> float:
        """Log the reason where that is due; returns the seconds to the next attempt.

        At first a verify service may be starting as well, which is no news. What is refused before an exchange has
        begun will be refused again, but for a reason that passes.
        """
        what, reason = (
            f"not attached to {self._address}",
            f"{type(error).__name__.removesuffix('Error')}: {error.message}",
        )
        passes = isinstance(error, UnavailableError | DeadlineExceededError)
        if passes and time.monotonic() < self._patient_until:
            _log.debug("%s yet: %s", what, reason)
            return self._attempts.away()
        level = logging.INFO if passes else logging.ERROR
        return self._attempts.failed(what, reason, level=level, refused=not passes and not self._transport)


def _reasons(unfit: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {reason}" for name, reason in unfit.items())


def _in_loop(failed: asyncio.Future[NoReturn]) -> Callable[[SlipstreamError], None]:
    """A function for other threads that fails the future."""
    loop = failed.get_loop()

    def fail(error: SlipstreamError) -> None:
        if not failed.done():
            failed.set_exception(error)

    def tell(error: SlipstreamError) -> None:
        with suppress(RuntimeError):  # the loop has closed, and with it all that could be told
            loop.call_soon_threadsafe(fail, error)

    return tell


async def _write(call: Any, outbox: ReplyQueue, most: int, feed: GrpcRecordSource | None) -> None:
    """Send what waits, at most `most` replies a message. Returns when the call is over: its status says why.

    With a feed the event loop is awake for what comes next.
    """
    with suppress(grpc.RpcError, asyncio.InvalidStateError):
        while True:
            replies = await outbox.take(most)
            await call.write(codec.encode_replies(replies))
            if feed is not None:
                await feed.poll(outbox)


async def _say_farewell(call: Any, reader: asyncio.Task[NoReturn]) -> None:
    """Half-close, so that verify sees an orderly end, and give it a moment to close its side."""
    with suppress(grpc.RpcError, asyncio.InvalidStateError, TimeoutError):
        async with asyncio.timeout(_FAREWELL_S):
            await call.done_writing()
            await asyncio.wait((reader,))
