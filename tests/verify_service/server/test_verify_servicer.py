"""VerifyService over real gRPC with a tiny model: sessions, refusals, cancellation, drain."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from slipstream.rpc.channel import from_rpc_error, open_channel
from slipstream.rpc.errors import InvalidArgumentError, UnavailableError
from slipstream.rpc.server import GrpcServer
from slipstream.v1 import draft_pb2, sampling_pb2, verify_pb2
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from support.drafters import WireDrafter, tree_reply, wire_drafter
from support.served_verify import PROMPT, Client, Served, served
from verify_service.draft_link.link_config import LinkConfig
from verify_service.server import verify_servicer as service
from verify_service.server.metrics.verify_metrics import VerifyMetrics
from verify_service.server.verify_servicer import VerifyServicer


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> CausalLM:
    return CausalLM.load(tiny_model, threads=1)


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Steps take long until it is set, so that requests last as long as a test needs them; a start does not."""
    hurry, forward = threading.Event(), CausalLM.forward

    def late(*args: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            hurry.wait(0.05)
        return forward(*args)

    monkeypatch.setattr(CausalLM, "forward", late)
    yield hurry
    hurry.set()


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def test_many_requests_share_one_stream(model: CausalLM) -> None:
    async def scenario() -> None:
        async with served(model) as one, open_channel(one.address) as channel:
            client = Client(channel)
            for request_id in range(8):
                await client.submit(request_id, seed=3, temperature=0.7, logprobs=2)
            await client.finish(*range(8))
            assert len({tuple(client.tokens(request_id)) for request_id in range(8)}) == 1
            assert len(client.tokens(0)) == 16
            first, last = client.outputs[0][0], client.last(0)
            assert (first.seed, len(first.logprobs), len(first.logprobs[0].top)) == (3, 1, 2)
            assert last.finish_reason == sampling_pb2.FINISH_REASON_LENGTH
            assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (8, 16)
            assert client.messages < 8 * 16
            await client.call.done_writing()
            assert not await client.read()

    run(scenario())


def test_each_request_is_told_of_once_when_it_starts_and_not_while_it_is_queued(
    model: CausalLM, hurry: threading.Event
) -> None:
    async def scenario() -> None:
        async with served(model, max_running=1) as one, open_channel(one.address) as channel:
            client = Client(channel)
            for request_id in range(3):
                await client.submit(request_id, max_tokens=400 if request_id == 0 else 2)
            await client.begun(1)
            assert client.started == [0]
            assert sorted(client.outputs) == [0]
            await client.cancel(0)
            await client.finish(1, 2)
            assert client.started == [0, 1, 2]

    run(scenario())


def test_a_half_closed_stream_ends_when_all_is_answered(model: CausalLM) -> None:
    async def scenario() -> None:
        async with served(model) as one, open_channel(one.address) as channel:
            client = Client(channel)
            await client.submit(1)
            await client.submit(2)
            await client.call.done_writing()
            async with asyncio.timeout(60):
                while await client.read():
                    pass
            assert client.tokens(1) == client.tokens(2)
            assert (await client.call.code()) == grpc.StatusCode.OK

    run(scenario())


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"top_p": 1.5}, 3, "top_p"),
        ({"temperature": float("nan")}, 3, "temperature"),
        ({"prompt": []}, 3, "prompt_token_ids"),
        ({"prompt": [512]}, 3, "prompt_token_ids"),
        ({"prompt": [1] * 600}, 3, "prompt_token_ids"),
        ({"max_tokens": 600}, 3, "max_tokens"),
        ({"proposer": "unheard-of"}, 3, "speculation.proposer"),
    ],
)
def test_a_refusal_names_the_field_and_leaves_the_session_working(
    model: CausalLM, fields: dict[str, Any], code: int, field: str
) -> None:
    async def scenario() -> None:
        async with served(model) as one, open_channel(one.address) as channel:
            client = Client(channel)
            await client.submit(1, **fields)
            await client.finish(1)
            assert client.last(1).finish_reason == sampling_pb2.FINISH_REASON_ERROR
            assert (client.last(1).error.code, client.last(1).error.field) == (code, field)
            client.outputs.clear()
            await client.submit(1, max_tokens=2)
            await client.finish(1)
            assert len(client.tokens(1)) == 2

    run(scenario())


def test_a_full_queue_is_resource_exhausted(model: CausalLM, hurry: threading.Event) -> None:
    async def scenario() -> None:
        async with served(model, max_running=1, max_queued=1) as one, open_channel(one.address) as channel:
            client = Client(channel)
            for request_id in range(4):
                await client.submit(request_id, max_tokens=100)
            await client.finish(3)
            hurry.set()
            await client.finish(*range(4))
            codes = sorted(client.last(request_id).error.code for request_id in range(4))
            assert codes[0] == 0
            assert codes[-1] == 8

    run(scenario())


@pytest.mark.parametrize("data", [b"\xff\xff\xff", b""])
def test_a_message_without_meaning_ends_only_its_own_stream(model: CausalLM, data: bytes) -> None:
    async def scenario() -> None:
        async with served(model) as one, open_channel(one.address) as channel, open_channel(one.address) as other:
            client = Client(other)
            await client.submit(1, max_tokens=200)
            call = channel.stream_stream(f"/{service.SERVICE}/Session")()
            await call.write(data)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert isinstance(from_rpc_error(caught.value), InvalidArgumentError)
            await client.finish(1)
            assert len(client.tokens(1)) == 200

    run(scenario())


def test_a_request_id_in_use_ends_the_stream(model: CausalLM, hurry: threading.Event) -> None:
    async def scenario() -> None:
        async with served(model) as one, open_channel(one.address) as channel:
            client = Client(channel)
            await client.submit(1, max_tokens=400)
            await client.submit(1, max_tokens=400)
            error = await client.error()
            assert isinstance(error, InvalidArgumentError)
            assert error.field == "request_id"
            await idle(one)

    run(scenario())


async def idle(one: Served) -> None:
    """Wait until nothing runs and every page is free or cached."""
    async with asyncio.timeout(60):
        while True:
            state = one.loop.state()
            if state.running + state.queued == 0 and state.pages_free + state.pages_cached == state.pages_total:
                return
            await asyncio.sleep(0.005)


def test_cancel_ends_one_request_and_frees_its_pages(model: CausalLM, hurry: threading.Event) -> None:
    async def scenario() -> None:
        async with served(model) as one, open_channel(one.address) as channel:
            client = Client(channel)
            await client.submit(1, max_tokens=400)
            await client.submit(2, max_tokens=20)
            await client.read()
            await client.cancel(1)
            await client.cancel(77)
            await client.finish(1)
            hurry.set()
            await client.finish(2)
            assert client.last(1).finish_reason == sampling_pb2.FINISH_REASON_CANCELLED
            assert len(client.tokens(1)) < 400
            assert len(client.tokens(2)) == 20
            await idle(one)

    run(scenario())


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_a_broken_stream_cancels_its_requests(model: CausalLM, hurry: threading.Event, how: str) -> None:
    async def scenario() -> None:
        async with served(model) as one:
            async with open_channel(one.address) as channel:
                client = Client(channel)
                for request_id in range(3):
                    await client.submit(request_id, max_tokens=490)
                await client.read()
                if how == "cancel":
                    client.call.cancel()
                    await idle(one)
            await idle(one)
            assert one.loop.state().committed_tokens < 3 * 490

    run(scenario())


def test_drain_finishes_what_runs_and_refuses_the_rest(model: CausalLM, hurry: threading.Event) -> None:
    async def scenario() -> None:
        async with served(model) as one, open_channel(one.address) as channel:
            client = Client(channel)
            for request_id in range(4):
                await client.submit(request_id, max_tokens=200)
            await client.begun(4)
            draining = asyncio.create_task(one.drain(120))
            async with asyncio.timeout(60):
                while not one.loop.state().draining:  # noqa: ASYNC110 - the loop tells nobody of its state
                    await asyncio.sleep(0.001)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.stub.GetInfo(verify_pb2.GetInfoRequest())
            assert isinstance(from_rpc_error(caught.value), UnavailableError)
            await client.submit(9)
            await client.finish(9)
            hurry.set()
            assert isinstance(await client.error(), UnavailableError)
            assert [len(client.tokens(request_id)) for request_id in range(4)] == [200] * 4
            assert client.last(9).error.code == grpc.StatusCode.UNAVAILABLE.value[0]
            await draining

    run(scenario())


def test_a_drain_out_of_time_answers_what_is_left(model: CausalLM, hurry: threading.Event) -> None:
    async def scenario() -> None:
        async with served(model) as one, open_channel(one.address) as channel:
            client = Client(channel)
            for request_id in range(4):
                await client.submit(request_id, max_tokens=490)
            await client.begun(4)
            draining = asyncio.create_task(one.drain(0.0))
            assert isinstance(await client.error(), UnavailableError)
            for request_id in range(4):
                assert client.last(request_id).error.code == grpc.StatusCode.UNAVAILABLE.value[0]
            await draining

    run(scenario())


def test_everything_is_unavailable_until_the_model_is_ready() -> None:
    async def scenario() -> None:
        verify = VerifyServicer(VerifyMetrics(CollectorRegistry()))
        server = GrpcServer(host="127.0.0.1", port=0, services=[service.SERVICE], register=verify.register)
        port = await server.start()
        async with open_channel(f"127.0.0.1:{port}") as channel:
            client = Client(channel)
            assert isinstance(await client.error(), UnavailableError)
            for method, request in (
                ("GetInfo", verify_pb2.GetInfoRequest()),
                ("GetState", verify_pb2.GetStateRequest()),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await getattr(client.stub, method)(request)
                assert isinstance(from_rpc_error(caught.value), UnavailableError)
        await server.drain(0)

    run(scenario())


def test_trees_from_a_drafter_are_accepted_and_change_no_token(model: CausalLM) -> None:
    truth: list[int] = []

    def oracle(_drafter: WireDrafter, kind: str, record: Any) -> list[draft_pb2.DraftReply]:
        """The true continuation, known from the plain run, beside a decoy."""
        if kind == "close" or record.max_nodes < 2:
            return []
        done = record.stamp.base_length - len(PROMPT)
        ahead = truth[done : done + min(4, record.max_depth, record.max_nodes - 2)]
        return [tree_reply(record.stamp, [0, *ahead], [-1, -1, *range(1, len(ahead))])]

    async def scenario() -> None:
        link = LinkConfig(deadline=5.0)
        async with served(model, link=link) as one, open_channel(one.address) as channel:
            client = Client(channel)
            await client.submit(1, max_tokens=60)
            await client.finish(1)
            truth.extend(client.tokens(1))
            async with wire_drafter(one.address, "oracle", answer=oracle):
                await client.submit(2, max_tokens=60, proposer="oracle")
                await client.finish(2)
                info = await client.stub.GetInfo(verify_pb2.GetInfoRequest())
                state = await client.stub.GetState(verify_pb2.GetStateRequest())
            assert client.tokens(2) == truth
            assert client.last(2).usage.verify_steps < 20
            assert client.last(2).usage.accepted_tokens > 40
            assert any(output.step.accepted == 4 and output.step.proposer == "oracle" for output in client.outputs[2])
            assert (info.proposers[0].name, info.proposers[0].attached, info.default_proposer) == (
                "oracle",
                True,
                "oracle",
            )
            assert (state.attachments, state.accepted_tokens) == (1, client.last(2).usage.accepted_tokens)
            text = generate_latest(one.registry).decode()
            assert f"slipstream_spec_decode_num_accepted_tokens_total {float(state.accepted_tokens)}" in text
            assert 'slipstream_request_success_total{finished_reason="length"} 2.0' in text
            assert "slipstream_time_to_first_token_seconds_count 2.0" in text
            assert "slipstream_draft_wait_seconds_count" in text

    run(scenario())
