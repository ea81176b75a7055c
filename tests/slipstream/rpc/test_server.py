"""A real server and client on loopback: health, reflection, errors, drain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from slipstream.rpc.channel import from_rpc_error, open_channel, open_sync_channel
from slipstream.rpc.errors import (
    InternalError,
    InvalidArgumentError,
    SlipstreamError,
    UnavailableError,
)
from slipstream.rpc.server import GrpcServer, abort
from slipstream.v1 import verify_pb2, verify_pb2_grpc

SERVICE = "slipstream.v1.VerifyService"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Failing(verify_pb2_grpc.VerifyServiceServicer):
    """Answers with the error it is given; GetState answers with the bearer's length once it may."""

    def __init__(self, error: BaseException | None = None, *, held: bool = False) -> None:
        self.error = error
        self.entered = asyncio.Event()
        self.go = asyncio.Event()
        if not held:
            self.go.set()

    async def GetInfo(
        self, request: verify_pb2.GetInfoRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> verify_pb2.GetInfoResponse:
        if self.error is not None:
            await abort(context, self.error)
        return verify_pb2.GetInfoResponse(model_name="m")

    async def GetState(
        self, request: verify_pb2.GetStateRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> verify_pb2.GetStateResponse:
        self.entered.set()
        await self.go.wait()
        metadata = dict(context.invocation_metadata() or ())
        return verify_pb2.GetStateResponse(running=len(str(metadata.get("authorization", ""))))

    async def Session(
        self, request_iterator: AsyncIterator[Any], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[verify_pb2.SessionResponse]:
        async for _ in request_iterator:
            yield verify_pb2.SessionResponse()


def make_server(servicer: Failing) -> GrpcServer:
    return GrpcServer(
        host="127.0.0.1",
        port=0,
        services=[SERVICE],
        register=lambda server: verify_pb2_grpc.add_VerifyServiceServicer_to_server(servicer, server),
    )


def test_health_follows_serving_and_drain_latches() -> None:
    async def scenario() -> None:
        server = make_server(Failing())
        port = await server.start()
        async with open_channel(f"127.0.0.1:{port}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)

            async def statuses() -> set[int]:
                names = ("", SERVICE)
                return {(await stub.Check(health_pb2.HealthCheckRequest(service=name))).status for name in names}

            assert await statuses() == {NOT_SERVING}
            await server.set_serving(True)
            assert await statuses() == {SERVING}
            await server.begin_drain()
            await server.set_serving(True)
            assert server.draining
            assert await statuses() == {NOT_SERVING}
        await server.drain(0)
        await server.wait()

    asyncio.run(scenario())


def test_reflection_lists_services() -> None:
    async def scenario() -> set[str]:
        server = make_server(Failing())
        port = await server.start()
        async with open_channel(f"127.0.0.1:{port}") as channel:
            call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
                iter([reflection_pb2.ServerReflectionRequest(list_services="")])
            )
            names = {service.name async for reply in call for service in reply.list_services_response.service}
        await server.drain(0)
        return names

    assert {SERVICE, "grpc.health.v1.Health"} <= asyncio.run(scenario())


@pytest.mark.parametrize(
    ("raised", "received", "field"),
    [
        (InvalidArgumentError("top_p is 2", field="sampling.top_p"), InvalidArgumentError, "sampling.top_p"),
        (InvalidArgumentError("bad", field="größe\n"), InvalidArgumentError, "gr\\xf6\\xdfe?"),
        (UnavailableError("loading"), UnavailableError, ""),
        (UnavailableError("full", retry_after=2.5), UnavailableError, ""),
        (KeyError("secret"), InternalError, ""),
    ],
)
def test_errors_cross_the_wire(raised: BaseException, received: type[SlipstreamError], field: str) -> None:
    async def scenario() -> SlipstreamError:
        server = make_server(Failing(raised))
        port = await server.start()
        async with open_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await verify_pb2_grpc.VerifyServiceStub(channel).GetInfo(verify_pb2.GetInfoRequest())
        await server.drain(0)
        return from_rpc_error(caught.value)

    error = asyncio.run(scenario())
    assert type(error) is received
    assert error.field == field
    assert error.retry_after == getattr(raised, "retry_after", None)
    assert "secret" not in error.message


def test_sync_channel_maps_errors_and_carries_the_token() -> None:
    def call(port: int) -> tuple[SlipstreamError, int]:
        with open_sync_channel(f"127.0.0.1:{port}", token="abc") as channel:
            stub = verify_pb2_grpc.VerifyServiceStub(channel)
            with pytest.raises(grpc.RpcError) as caught:
                stub.GetInfo(verify_pb2.GetInfoRequest(), timeout=60)
            return from_rpc_error(caught.value), stub.GetState(verify_pb2.GetStateRequest(), timeout=60).running

    async def scenario() -> tuple[SlipstreamError, int]:
        server = make_server(Failing(UnavailableError("later")))
        port = await server.start()
        answer = await asyncio.to_thread(call, port)
        await server.drain(0)
        return answer

    error, length = asyncio.run(scenario())
    assert isinstance(error, UnavailableError)
    assert length == len("Bearer abc")


def test_async_channel_carries_the_token_on_unary_and_stream() -> None:
    async def scenario() -> None:
        server = make_server(Failing())
        port = await server.start()
        async with open_channel(f"127.0.0.1:{port}", token="abc") as channel:
            stub = verify_pb2_grpc.VerifyServiceStub(channel)
            assert (await stub.GetState(verify_pb2.GetStateRequest())).running == len("Bearer abc")
            call = stub.Session()
            await call.write(verify_pb2.SessionRequest())
            assert await call.read() == verify_pb2.SessionResponse()
            await call.done_writing()
        await server.drain(0)

    asyncio.run(scenario())


def test_drain_lets_running_calls_finish_and_refuses_new_ones() -> None:
    async def scenario() -> None:
        servicer = Failing(held=True)
        server = make_server(servicer)
        port = await server.start()
        async with open_channel(f"127.0.0.1:{port}") as channel:
            stub = verify_pb2_grpc.VerifyServiceStub(channel)
            running = asyncio.ensure_future(stub.GetState(verify_pb2.GetStateRequest()))
            await servicer.entered.wait()
            drain = asyncio.create_task(server.drain(60))
            refusals: list[type[SlipstreamError]] = []
            while UnavailableError not in refusals:  # a call that meets the stop on its way may still be answered
                try:
                    await stub.GetInfo(verify_pb2.GetInfoRequest(), timeout=60)
                except grpc.aio.AioRpcError as refused:
                    refusals.append(type(from_rpc_error(refused)))
            assert not running.done()
            servicer.go.set()
            assert (await running).running == 0
            await drain

    asyncio.run(scenario())


def test_a_taken_port_is_unavailable() -> None:
    async def scenario() -> None:
        first = make_server(Failing())
        port = await first.start()
        second = GrpcServer(host="127.0.0.1", port=port, services=[], register=lambda _: None)
        with pytest.raises(UnavailableError, match="cannot listen"):
            await second.start()
        await first.drain(0)

    asyncio.run(scenario())
