"""A verify service within the test's process, over real gRPC, and a client of its sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from prometheus_client import CollectorRegistry

from slipstream.rpc.channel import from_rpc_error
from slipstream.rpc.errors import SlipstreamError
from slipstream.rpc.server import GrpcServer
from slipstream.v1 import sampling_pb2, verify_pb2, verify_pb2_grpc
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from verify_service.core.engine_config import EngineConfig
from verify_service.draft_link import draft_servicer
from verify_service.draft_link.draft_link import DraftLink
from verify_service.draft_link.draft_servicer import DraftLinkServicer
from verify_service.draft_link.link_config import LinkConfig
from verify_service.draft_link.records import LinkFacts
from verify_service.engine.sink import Sink
from verify_service.engine.verify_loop import VerifyLoop
from verify_service.server import verify_servicer as service
from verify_service.server.adapter_loader import AdapterLoader
from verify_service.server.metrics.verify_metrics import VerifyMetrics
from verify_service.server.server_info import ServerInfo
from verify_service.server.verify_servicer import Backend, VerifyServicer

PROMPT = [5, 6, 7, 8, 9, 5, 6, 7]


class Served:
    """A verify service within this process, on a free port."""

    def __init__(
        self,
        model: CausalLM,
        engine: EngineConfig,
        link: LinkConfig,
        boundaries: tuple[int, ...] = (),
        lora_dir: Path | None = None,
    ) -> None:
        """`boundaries` are those that drafters may want states of; adapters are loaded from below `lora_dir`."""
        config = model.config
        self.registry = CollectorRegistry()
        metrics = VerifyMetrics(self.registry)
        self.verify, self.draft = VerifyServicer(metrics), DraftLinkServicer()
        facts = LinkFacts(
            "model", "tokenizer", config.vocab_size, config.hidden_size, 2, config.max_context, 64, boundaries,
            len(boundaries),
        )  # fmt: skip
        self.link = DraftLink(facts, link, on_wait=metrics.draft_wait)
        sink = Sink(self.verify.sink, self.verify.tell_started, self.verify.tell_cached)
        self.loop = VerifyLoop(model, engine, self.link, sink)
        metrics.watch(self.loop.state, self.link.state)
        self.facts = ServerInfo(
            "tiny", "/m", "model", "tokenizer", config.vocab_size, config.max_context, engine.max_running,
            engine.max_queued, config.eos_token_ids, "exact", "cpu", 16, engine.num_pages, 64, 1, "0",
            prefix_cache=engine.prefix_cache,
        )  # fmt: skip
        self.loop.adapters.on_change = self.verify.tell_adapters
        self.adapters = AdapterLoader(
            self.loop.adapters, config, model_name="tiny", folder=lora_dir, most_rank=engine.max_adapter_rank
        )
        self.server = GrpcServer(
            host="127.0.0.1", port=0, services=[service.SERVICE, draft_servicer.SERVICE], register=self._register
        )
        self.address = ""
        self.stopped = False

    def _register(self, server: grpc.aio.Server) -> None:
        self.verify.register(server)
        self.draft.register(server)

    async def start(self) -> None:
        self.address = f"127.0.0.1:{await self.server.start()}"
        self.loop.start()
        self.verify.backend = Backend(self.facts, self.loop, self.link, self.adapters)
        self.draft.link = self.link

    async def drain(self, seconds: float) -> None:
        self.stopped = True
        await self.server.begin_drain()
        await self.verify.drain(seconds)
        await self.server.drain(1)


@asynccontextmanager
async def served(
    model: CausalLM,
    *,
    link: LinkConfig | None = None,
    boundaries: tuple[int, ...] = (),
    lora_dir: Path | None = None,
    **engine: Any,
) -> AsyncIterator[Served]:
    one = Served(model, EngineConfig(**({"num_pages": 256} | engine)), link or LinkConfig(), boundaries, lora_dir)
    await one.start()
    try:
        yield one
    finally:
        if not one.stopped:
            await one.drain(0)


class Client:
    """One session; gathers outputs by request."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.stub = verify_pb2_grpc.VerifyServiceStub(channel)
        self.call = self.stub.Session()
        self.outputs: dict[int, list[verify_pb2.RequestOutput]] = {}
        self.started: list[int] = []
        self.messages = 0

    async def submit(self, request_id: int, *, prompt: list[int] | None = None, **sampling: Any) -> None:
        proposer = sampling.pop("proposer", "")
        params = {"temperature": 0.0, "max_tokens": 16, "ignore_eos": True} | sampling
        await self.call.write(
            verify_pb2.SessionRequest(
                submit=verify_pb2.Submit(
                    request_id=request_id,
                    prompt_token_ids=PROMPT if prompt is None else prompt,
                    sampling=sampling_pb2.SamplingParams(**params),
                    speculation=sampling_pb2.Speculation(proposer=proposer),
                )
            )
        )

    async def cancel(self, request_id: int) -> None:
        await self.call.write(verify_pb2.SessionRequest(cancel=verify_pb2.Cancel(request_id=request_id)))

    async def read(self) -> bool:
        """Take one message; False at the end of the stream."""
        message = await self.call.read()
        if message is grpc.aio.EOF:
            return False
        self.messages += 1
        self.started += message.started
        for output in message.outputs:
            self.outputs.setdefault(output.request_id, []).append(output)
        return True

    async def finish(self, *request_ids: int) -> None:
        async with asyncio.timeout(60):
            while not all(self.last(request_id).finish_reason for request_id in request_ids):
                assert await self.read()

    def last(self, request_id: int) -> verify_pb2.RequestOutput:
        return self.outputs.get(request_id, [verify_pb2.RequestOutput()])[-1]

    def tokens(self, request_id: int) -> list[int]:
        return [token for output in self.outputs[request_id] for token in output.token_ids]

    async def begun(self, count: int) -> None:
        """Read until each of the first `count` requests has got something."""
        while not all(request_id in self.outputs for request_id in range(count)):
            assert await self.read()

    async def error(self) -> SlipstreamError:
        """Read to the error that ends the stream."""
        try:
            async with asyncio.timeout(60):
                while await self.read():
                    pass
        except grpc.aio.AioRpcError as error:
            return from_rpc_error(error)
        raise AssertionError("the stream ended without an error")
