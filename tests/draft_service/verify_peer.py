"""The verify end of the exchange, written from the .proto comments: grants attachments and records what arrives."""

from __future__ import annotations

import asyncio
from itertools import count

import grpc

from slipstream.rpc.channel import open_channel
from slipstream.v1 import draft_pb2 as pb
from slipstream.v1 import draft_pb2_grpc, sampling_pb2, tree_pb2

TIMEOUT_S = 60.0


class VerifyPeer(draft_pb2_grpc.DraftLinkServiceServicer):
    def __init__(self, *, vocab_size: int = 1000, fingerprint: str = "tokenizer", num_slots: int = 8) -> None:
        self.vocab_size = vocab_size
        self.fingerprint = fingerprint
        self.num_slots = num_slots
        self.attachments: asyncio.Queue[pb.AttachRequest] = asyncio.Queue()
        self.exchanges: asyncio.Queue[int] = asyncio.Queue()
        self.replies: asyncio.Queue[pb.DraftReply] = asyncio.Queue()
        self.messages = 0
        self.most_replies = 0
        self.shares: list[float] = []
        self.refuse_attach: grpc.StatusCode | None = None
        self.ended: asyncio.Queue[str] = asyncio.Queue()
        self.unfit: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        self._epochs = count(1)
        self._commands: asyncio.Queue[pb.ExchangeResponse | None] = asyncio.Queue()
        self._server: grpc.aio.Server | None = None

    async def start(self, port: int = 0) -> int:
        self._server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        draft_pb2_grpc.add_DraftLinkServiceServicer_to_server(self, self._server)
        bound = self._server.add_insecure_port(f"127.0.0.1:{port}")
        await self._server.start()
        return bound

    async def stop(self) -> None:
        assert self._server is not None
        await self._server.stop(0)

    async def GetInfo(self, request, context):
        return pb.DraftLinkServiceGetInfoResponse(
            min_version=1, max_version=1, tokenizer_fingerprint=self.fingerprint, vocab_size=self.vocab_size,
            max_context=4096, max_nodes=64, transports=["grpc"],
        )  # fmt: skip

    async def Attach(self, request, context):
        if self.refuse_attach is not None:
            await context.abort(self.refuse_attach, "refused by the test")
        if not request.proposers:
            self.unfit.put_nowait({each.name: each.reason for each in request.unfit})
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no proposer fits")
        self.attachments.put_nowait(request)
        return pb.AttachResponse(
            version=1, epoch=next(self._epochs), transport="grpc", num_slots=self.num_slots, deadline_us=20_000,
        )  # fmt: skip

    async def Exchange(self, request_iterator, context):
        self._commands = asyncio.Queue()
        self.exchanges.put_nowait(int(dict(context.invocation_metadata())["slipstream-epoch"]))
        reader = asyncio.create_task(self._read(request_iterator))
        while (message := await self._commands.get()) is not None:
            await context.write(message)
        reader.cancel()

    async def _read(self, request_iterator) -> None:
        async for message in request_iterator:
            self.messages += 1
            if message.HasField("share"):
                self.shares.append(message.share)
            self.most_replies = max(self.most_replies, len(message.replies))
            for reply in message.replies:
                self.replies.put_nowait(reply)
        self.ended.put_nowait("half-closed")
        self._commands.put_nowait(None)

    def drop_exchange(self) -> None:
        self._commands.put_nowait(None)

    def send(self, *commands: pb.DraftCommand) -> None:
        self._commands.put_nowait(pb.ExchangeResponse(commands=commands))

    async def next_epoch(self) -> int:
        return await asyncio.wait_for(self.exchanges.get(), TIMEOUT_S)

    async def next_reply(self) -> pb.DraftReply:
        return await asyncio.wait_for(self.replies.get(), TIMEOUT_S)

    async def next_tree(self) -> tree_pb2.TokenTree:
        reply = await self.next_reply()
        assert reply.WhichOneof("kind") == "tree", reply
        return reply.tree


def stamp(epoch: int, slot: int, generation: int, tokens: list[int]) -> tree_pb2.Stamp:
    return tree_pb2.Stamp(
        epoch=epoch, slot=slot, generation=generation, base_length=len(tokens), root_token=tokens[-1] if tokens else 0
    )


def open_command(
    at: tree_pb2.Stamp,
    tokens: list[int],
    *,
    proposer: int = 0,
    sampling: sampling_pb2.SamplingParams | None = None,
    max_nodes: int = 64,
    max_depth: int = 63,
    prompt_length: int | None = None,
) -> pb.DraftCommand:
    return pb.DraftCommand(
        open=pb.Open(
            stamp=at, proposer=proposer, token_ids=tokens, prompt_length=prompt_length or len(tokens),
            sampling=sampling or sampling_pb2.SamplingParams(temperature=0), max_nodes=max_nodes, max_depth=max_depth,
        )
    )  # fmt: skip


def commit_command(at: tree_pb2.Stamp, new: list[int], *, max_nodes: int = 64, max_depth: int = 63) -> pb.DraftCommand:
    return pb.DraftCommand(commit=pb.Commit(stamp=at, token_ids=new, max_nodes=max_nodes, max_depth=max_depth))


async def admin_info(port: int) -> pb.DraftAdminServiceGetInfoResponse:
    async with open_channel(f"127.0.0.1:{port}") as channel:
        stub = draft_pb2_grpc.DraftAdminServiceStub(channel)
        return await stub.GetInfo(pb.DraftAdminServiceGetInfoRequest(), timeout=60)
