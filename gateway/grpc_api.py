"""The public gRPC API. Bytes come in and go out; codec gives them meaning."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

import grpc

from gateway import codec
from gateway.generation import Generation
from gateway.limits import check_message_count
from gateway.request import Order, VerifyInfo
from gateway.service import Gateway
from slipstream.rpc.errors import InvalidArgumentError, codes_of
from slipstream.rpc.server import abort
from slipstream.v1 import gateway_pb2

_log = logging.getLogger(__name__)

SERVICE_NAME: Final = "slipstream.v1.GatewayService"

Context = grpc.aio.ServicerContext[Any, Any]


class GatewayServicer:
    """GatewayService over a Gateway. Method contracts are in slipstream/v1/gateway.proto."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._most = gateway.settings.max_body_bytes

    def register(self, server: grpc.aio.Server) -> None:
        """Add the service to a server. Messages are handed over as bytes, so that malformed ones can be answered."""
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "Generate": grpc.unary_stream_rpc_method_handler(self.generate),
            "ListModels": grpc.unary_unary_rpc_method_handler(self.list_models),
            "Tokenize": grpc.unary_unary_rpc_method_handler(self.tokenize),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))

    async def generate(self, data: bytes, context: Context) -> None:
        """See the proto."""
        outcome = "CANCELLED"
        try:
            with await self._open(data, context) as generation:
                await _stream(generation, context)
            outcome = "OK"
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001  # the edge: the table of errors answers for all of them
            outcome = codes_of(error).status.name
            await abort(context, error)
        finally:
            self._gateway.metrics.answered("grpc", outcome)

    async def list_models(self, data: bytes, context: Context) -> bytes:
        """See the proto."""
        try:
            self._authenticate(context)
            codec.read_request(gateway_pb2.ListModelsRequest, data, most=self._most)
            return codec.write_models([await self._gateway.client.fetch_info()])
        except Exception as error:  # noqa: BLE001  # the edge: the table of errors answers for all of them
            await abort(context, error)

    async def tokenize(self, data: bytes, context: Context) -> bytes:
        """See the proto."""
        try:
            self._authenticate(context)
            request = codec.read_request(gateway_pb2.TokenizeRequest, data, most=self._most)
            info = self._gateway.model(request.model)
            return codec.write_token_ids(await self._prompt(request, info))
        except Exception as error:  # noqa: BLE001  # the edge: the table of errors answers for all of them
            await abort(context, error)

    async def _open(self, data: bytes, context: Context) -> Generation:
        tenant = self._authenticate(context)
        request = codec.read_request(gateway_pb2.GenerateRequest, data, most=self._most)
        self._gateway.check_draining()
        info = self._gateway.model(request.model)
        order = Order(
            prompt_token_ids=await self._prompt(request, info),
            sampling=codec.read_sampling(request.sampling),
            speculation=codec.read_speculation(request.speculation) if request.HasField("speculation") else None,
            stop=tuple(request.stop),
            tenant=request.tenant if tenant is None else tenant,
            adapter_id=request.adapter_id,
            choice_index=request.choice_index,
        )
        field = {"chat": "chat.messages", "token_ids": "token_ids"}.get(request.WhichOneof("prompt") or "", "text")
        return self._gateway.open([order], info, prompt_field=field, prefix="sampling.")

    async def _prompt(
        self, request: gateway_pb2.GenerateRequest | gateway_pb2.TokenizeRequest, info: VerifyInfo
    ) -> Sequence[int]:
        kind = request.WhichOneof("prompt")
        if kind == "chat":
            check_message_count("chat.messages", len(request.chat.messages), info)
            messages = [{"role": entry.role, "content": entry.content} for entry in request.chat.messages]
            return await self._gateway.encode_chat(messages, info, field="chat.messages")
        if kind == "text":
            return await self._gateway.encode(request.text, info, field="text")
        if kind == "token_ids" and isinstance(request, gateway_pb2.GenerateRequest):
            return list(request.token_ids.ids)
        raise InvalidArgumentError("one of the prompt's fields must be set", field="prompt")

    def _authenticate(self, context: Context) -> str | None:
        given = [value for key, value in context.invocation_metadata() or () if key == "authorization"]
        return self._gateway.keys.tenant_of([value if isinstance(value, str) else "" for value in given])


async def _stream(generation: Generation, context: Context) -> None:
    """One message a verify step; the seed with the first one."""
    seed: int | None = generation.seed
    usage, write = generation.choices[0].usage, context.write
    while deltas := await generation.next():
        for delta in deltas:
            await write(codec.write_delta(delta, usage, seed))
            seed = None
