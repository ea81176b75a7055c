"""The public gRPC API. Bytes come in and go out; codec gives them meaning."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc

from gateway import codec
from gateway.access.access_log import Access, access_of_grpc
from gateway.core import request_id
from gateway.core.request import ChoiceRequest
from gateway.generation.generation import Generation
from gateway.service import Gateway
from gateway.text.prepared import WorkerTask
from slipstream.rpc.errors import codes_of
from slipstream.rpc.server import abort
from slipstream.tracing.names import OPERATION_CHAT, OPERATION_COMPLETION
from slipstream.v1 import gateway_pb2

_log = logging.getLogger(__name__)

SERVICE_NAME: Final = "slipstream.v1.GatewayService"

_LIST_MODELS_BYTES: Final = 64 * 1024
"""Largest request that is decoded on the event loop."""

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
            "LoadLoraAdapter": grpc.unary_unary_rpc_method_handler(self.load_lora_adapter),
            "UnloadLoraAdapter": grpc.unary_unary_rpc_method_handler(self.unload_lora_adapter),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))

    async def generate(self, data: bytes, context: Context) -> None:
        """See the proto."""
        access = _access("Generate", context)
        try:
            async with self._answering(access, context):
                with await self._open(data, context, access) as generation:
                    await _stream(generation, context, access.context.request_id)
        finally:
            self._gateway.metrics.answered("grpc", access.status)

    async def list_models(self, data: bytes, context: Context) -> bytes:
        """See the proto."""
        async with self._answering(_access("ListModels", context), context):
            self._authenticate(context)
            codec.check_size(data, min(self._most, _LIST_MODELS_BYTES))
            codec.read_request(gateway_pb2.ListModelsRequest, data)
            return codec.write_models(await self._gateway.client.fetch_info())

    async def load_lora_adapter(self, data: bytes, context: Context) -> bytes:
        """See the proto."""
        async with self._answering(_access("LoadLoraAdapter", context), context):
            self._authenticate(context)
            codec.check_size(data, min(self._most, _LIST_MODELS_BYTES))
            request = codec.read_request(gateway_pb2.LoadLoraAdapterRequest, data)
            adapter = await self._gateway.load_adapter(request.name, request.path)
            return codec.write_loaded(self._gateway.model(), adapter)

    async def unload_lora_adapter(self, data: bytes, context: Context) -> bytes:
        """See the proto."""
        async with self._answering(_access("UnloadLoraAdapter", context), context):
            self._authenticate(context)
            codec.check_size(data, min(self._most, _LIST_MODELS_BYTES))
            request = codec.read_request(gateway_pb2.UnloadLoraAdapterRequest, data)
            await self._gateway.unload_adapter(request.name)
            return gateway_pb2.UnloadLoraAdapterResponse().SerializeToString()

    async def tokenize(self, data: bytes, context: Context) -> bytes:
        """See the proto."""
        async with self._answering(_access("Tokenize", context), context):
            self._authenticate(context)
            codec.check_size(data, self._most)
            return codec.write_token_ids(await self._gateway.text.tokenize(data, self._gateway.model()))

    @asynccontextmanager
    async def _answering(self, access: Access, context: Context) -> AsyncIterator[None]:
        """End the call with the status of whatever is raised within, and log it."""
        access.status = grpc.StatusCode.CANCELLED.name
        try:
            yield
            access.status = grpc.StatusCode.OK.name
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001  # the edge: the table of errors answers for all of them
            access.status = codes_of(error).status.name
            access.fails(error)
            await abort(context, error, ((request_id.METADATA_KEY, access.context.request_id),))
        finally:
            self._gateway.access_log.end(access)

    async def _open(self, data: bytes, context: Context, access: Access) -> Generation:
        self._gateway.tracing.begin(access, OPERATION_COMPLETION)
        access.stream = True
        tenant = self._authenticate(context)
        codec.check_size(data, self._most)
        info = self._gateway.model()
        request = await self._gateway.prepare(WorkerTask.GENERATE, data, info)
        if request.prompt_field.startswith("chat"):
            access.operation = OPERATION_CHAT
        choice_request = ChoiceRequest(
            prompt_token_ids=request.prompts[0],
            sampling=request.sampling,
            speculation=request.speculation,
            stop=request.stop,
            tenant=request.tenant if tenant is None else tenant,
            context=access.span.context,
            adapter_id=request.adapter_id,
            choice_index=request.choice_index,
            prompt_wire=request.wires[0],
            prompt_hashes=request.hashes[0],
            grammar_wire=request.grammar_wire,
        )
        generation = self._gateway.open([choice_request], info, prompt_field=request.prompt_field, prefix="sampling.")
        access.generates(generation, info.model_name)
        return generation

    def _authenticate(self, context: Context) -> str | None:
        given = [value for key, value in context.invocation_metadata() or () if key == "authorization"]
        return self._gateway.keys.tenant_of([value if isinstance(value, str) else "" for value in given])


def _access(method: str, context: Context) -> Access:
    named = request_id.context_of_metadata(context.invocation_metadata() or ())
    return access_of_grpc(method, context.peer(), named)


async def _stream(generation: Generation, context: Context, named: str) -> None:
    """One message a verify step, and those of the prompt's logprobs before them; the seed with the first one.

    The request's id goes before them: not before it is known that there are any, since a call that has not been
    answered at all is one that clients may repeat by themselves.
    """
    seed: int | None = generation.seed
    choice_request = generation.requests[0]
    written, write = codec.DeltaWriter(generation.choices[0]).write, context.write
    deltas = await generation.next()
    await context.send_initial_metadata(((request_id.METADATA_KEY, named),))
    while deltas:
        if seed is not None and choice_request.sampling.prompt_logprobs is not None:
            await write(codec.write_prompt_start(seed))
            seed = None
        for delta in deltas:
            if (scores := delta.prompt_logprobs) is None:
                await write(written(delta, seed))
                seed = None
            else:
                await write(
                    codec.write_prompt_logprobs(scores, choice_request.prompt_token_ids[scores.first : scores.end])
                )
                await asyncio.sleep(0)
        deltas = await generation.next()
