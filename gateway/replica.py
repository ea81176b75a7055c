"""One verify service: a session stream that carries all requests sent there, and is reopened when it breaks."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any, Final

import grpc

from gateway import codec
from gateway.mailbox import Mailbox
from gateway.request import FinishReason, Order, StepOutput, VerifyInfo
from slipstream.rpc.channel import from_rpc_error, open_channel
from slipstream.rpc.errors import SlipstreamError, UnavailableError
from slipstream.v1 import verify_pb2, verify_pb2_grpc

_log = logging.getLogger(__name__)

FIRST_RETRY_SECONDS: Final = 0.1
LAST_RETRY_SECONDS: Final = 2.0


class Ticket:
    """One choice on its way through a verify service. `deliver` is called with each output, the last one finished."""

    __slots__ = ("_kept", "deliver", "fingerprint", "fruitless", "order", "received", "replica", "request_id")

    def __init__(self, order: Order, deliver: Callable[[StepOutput], None]) -> None:
        self.order = order
        self.deliver = deliver
        self.received: list[int] = []  # token ids so far, from which another service of the same model can go on
        self.fingerprint = ""  # of the model that took it first
        self.fruitless = 0  # sessions lost in a row without a token of it
        self._kept = 0  # tokens received when a session was lost last
        self.replica: Replica | None = None
        self.request_id = 0

    def count_loss(self) -> None:
        """Its session has broken."""
        self.fruitless = 0 if len(self.received) > self._kept else self.fruitless + 1
        self._kept = len(self.received)

    def fail(self, error: SlipstreamError) -> None:
        """End the choice with an error."""
        self.deliver(StepOutput([], finish_reason=FinishReason.ERROR, error=error))


class Replica:
    """A verify service at one address.

    `on_ready` is called when it becomes ready, `on_lost` with the tickets that were under way when its session
    broke, or that it gave back as unavailable, which is how a service that drains answers; then it is sent no more
    until it has come back. Outputs that a session still delivers for a cancelled ticket are dropped.
    """

    __slots__ = ("_next_id", "_on_lost", "_on_ready", "_outbox", "_refusing", "_stub", "_task", "_tickets", "_timeout",
                 "address", "info")  # fmt: skip

    def __init__(
        self,
        address: str,
        *,
        timeout: float,
        on_ready: Callable[[], None],
        on_lost: Callable[[list[Ticket], SlipstreamError], None],
    ) -> None:
        self.address = address
        self.info: VerifyInfo | None = None  # set while the session is open
        self._refusing = False
        self._timeout = timeout
        self._on_ready = on_ready
        self._on_lost = on_lost
        self._tickets: dict[int, Ticket] = {}
        self._outbox: Mailbox[verify_pb2.SessionRequest] = Mailbox()
        self._next_id = 1
        self._stub: Any = None  # generated stubs have no types
        self._task: asyncio.Task[None] | None = None

    @property
    def ready(self) -> bool:
        """Whether requests can be sent."""
        return self.info is not None and not self._refusing

    @property
    def load(self) -> int:
        """Choices under way."""
        return len(self._tickets)

    def start(self) -> None:
        """Connect, and stay connected until closed."""
        self._task = asyncio.create_task(self._stay_connected(), name=f"verify {self.address}")

    async def close(self) -> None:
        """End the session; what is under way is lost."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._lose()

    def submit(self, ticket: Ticket) -> None:
        """Send a ticket; only while ready."""
        message = codec.write_submit(self._next_id, ticket.order, ticket.received)
        if self.info is not None and not ticket.fingerprint:
            ticket.fingerprint = self.info.fingerprint
        ticket.replica, ticket.request_id = self, self._next_id
        self._next_id += 1
        self._tickets[ticket.request_id] = ticket
        self._outbox.put(message)

    def cancel(self, ticket: Ticket) -> None:
        """Forget a ticket and tell the service, unless it is finished already."""
        if self._tickets.pop(ticket.request_id, None) is not None:
            self._outbox.put(codec.write_cancel(ticket.request_id))

    async def fetch_info(self) -> VerifyInfo:
        """The service's facts of this moment. UnavailableError and others of the table."""
        if self._stub is None:
            raise UnavailableError(f"no verify service answers at {self.address}")
        try:
            return codec.read_info(await self._stub.GetInfo(verify_pb2.GetInfoRequest(), timeout=self._timeout))
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error

    async def _stay_connected(self) -> None:
        delay = FIRST_RETRY_SECONDS
        reported = ""
        while True:
            understood = True
            try:
                await self._hold_session()
                reason: SlipstreamError = UnavailableError("the verify service closed the session")
            except grpc.RpcError as error:
                reason = from_rpc_error(error)
            except SlipstreamError as error:
                reason = error
            except Exception as error:  # noqa: BLE001  # whatever a peer sends, its requests move and it is asked again
                _log.exception("the session with verify service %s failed", self.address)
                understood, reason = False, UnavailableError(f"the session failed: {error!r}")
            if self.info is not None and understood:
                delay, reported = FIRST_RETRY_SECONDS, ""
            if reason.message != reported:
                reported = reason.message
                _log.warning("verify service %s is away: %s", self.address, reported)
            self._lose()
            await asyncio.sleep(delay * random.uniform(0.8, 1.2))
            delay = min(delay * 1.5, LAST_RETRY_SECONDS)

    async def _hold_session(self) -> None:
        """Open a session and read it until it breaks."""
        async with open_channel(self.address) as channel:
            self._stub = verify_pb2_grpc.VerifyServiceStub(channel)
            info = await self.fetch_info()
            call = self._stub.Session()
            self._outbox = Mailbox()
            writer = asyncio.create_task(self._write(call, self._outbox))
            try:
                self.info, self._refusing = info, False
                _log.info("verify service %s serves %s", self.address, info.model_name)
                self._on_ready()
                await self._read(call)
            finally:
                call.cancel()
                writer.cancel()
                await asyncio.gather(writer, return_exceptions=True)

    async def _write(self, call: Any, outbox: Mailbox[verify_pb2.SessionRequest]) -> None:
        while True:
            for message in await outbox.take():
                await call.write(message)

    async def _read(self, call: Any) -> None:
        """Hand each output to its ticket."""
        read, tickets = call.read, self._tickets
        while (response := await read()) is not grpc.aio.EOF:
            for message in response.outputs:
                ticket = tickets.get(message.request_id)
                if ticket is None:
                    continue
                output = codec.read_output(message)
                ticket.received += output.token_ids
                if output.finish_reason is not None:
                    del tickets[message.request_id]
                    if isinstance(output.error, UnavailableError):
                        self._refusing = True
                        self._on_lost([ticket], output.error)
                        continue
                ticket.deliver(output)

    def _lose(self) -> None:
        """Hand back what was under way."""
        lost = list(self._tickets.values())
        for ticket in lost:
            ticket.count_loss()
        self._tickets.clear()
        self._stub, was_open, self.info = None, self.info is not None, None
        if was_open:
            reason = UnavailableError("the verify service went away")
            self._on_lost(lost, reason)
