"""A small typed client of the gateway, blocking and asyncio.

    from slipstream import Client

    with Client("127.0.0.1:50051") as client:
        print(client.generate("Once upon a time", max_tokens=40).text)
        for event in client.stream(messages=[{"role": "user", "content": "Hello"}], temperature=0):
            print(event.text, end="", flush=True)

Every method raises the errors of slipstream.rpc.errors. Generating has no deadline unless `timeout` (in seconds) is
given: an output takes as long as it takes; keepalive finds a dead peer within 20 s, and an attempt to connect may take
10 s. The other calls have 5 s, but adapters 120 s to come, and as long as it takes to go.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, Unpack

import grpc

from slipstream import client_codec
from slipstream.completion import Completion, Event, Message, Model, Options, collect
from slipstream.rpc.channel import from_rpc_error, open_channel, open_sync_channel
from slipstream.rpc.tls import Tls
from slipstream.v1 import gateway_pb2, gateway_pb2_grpc

DEFAULT_ADDRESS: Final = "127.0.0.1:50051"
UNARY_TIMEOUT: Final = 5.0
"""Seconds for calls that generate nothing."""
ADAPTER_TIMEOUT: Final = 120.0
"""Seconds for reading an adapter."""


def _tls(
    root_certificate: str | Path | None, credentials: Tls | grpc.ChannelCredentials | None
) -> Tls | grpc.ChannelCredentials | None:
    if root_certificate is None:
        return credentials
    if credentials is not None:
        raise ValueError("root_certificate and credentials exclude each other")
    return Tls(Path(root_certificate).read_bytes())


class Stream(Iterator[Event]):
    """The events of one output as they come. Closing it, or leaving its `with` block, cancels the request."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __next__(self) -> Event:
        try:
            return client_codec.read_event(next(self._call))
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancel what is left."""
        self._call.cancel()


class Client:
    """Talks to one gateway over one channel; safe to share between threads.

    `address` is host:port or unix:PATH. Over host:port the channel is encrypted with `root_certificate`, a PEM file of
    the authority that has signed the server's certificate, or with `credentials`, as of `grpc.ssl_channel_credentials`.
    OSError if the file cannot be read.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        api_key: str = "",
        root_certificate: str | Path | None = None,
        credentials: Tls | grpc.ChannelCredentials | None = None,
    ) -> None:
        self._channel = open_sync_channel(address, token=api_key, tls=_tls(root_certificate, credentials))
        self._stub: Any = gateway_pb2_grpc.GatewayServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the channel; calls under way are cancelled."""
        self._channel.close()

    def stream(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        token_ids: Sequence[int] | None = None,
        **options: Unpack[Options],
    ) -> Stream:
        """Generate from exactly one of `prompt`, `messages` and `token_ids`, event by event.

        Without `timeout` there is no deadline.
        """
        request = client_codec.write_request(prompt, messages, token_ids, options)
        return Stream(self._stub.Generate(request, timeout=options.get("timeout")))

    def generate(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        token_ids: Sequence[int] | None = None,
        **options: Unpack[Options],
    ) -> Completion:
        """Generate from exactly one of `prompt`, `messages` and `token_ids`, and wait for the whole output.

        Without `timeout` there is no deadline.
        """
        with self.stream(prompt, messages=messages, token_ids=token_ids, **options) as events:
            return collect(events)

    def list_models(self, *, timeout: float = UNARY_TIMEOUT) -> list[Model]:
        """The models that can be asked for."""
        return client_codec.read_models(self._ask(self._stub.ListModels, gateway_pb2.ListModelsRequest(), timeout))

    def load_lora_adapter(self, name: str, path: str, *, timeout: float = ADAPTER_TIMEOUT) -> Model:
        """Have a LoRA adapter served, from a folder below the one that the operator named, where that is allowed."""
        request = gateway_pb2.LoadLoraAdapterRequest(name=name, path=path)
        return client_codec.read_model(self._ask(self._stub.LoadLoraAdapter, request, timeout).model)

    def unload_lora_adapter(self, name: str, *, timeout: float | None = None) -> None:
        """Have an adapter go, and wait until the requests that use it have ended."""
        self._ask(self._stub.UnloadLoraAdapter, gateway_pb2.UnloadLoraAdapterRequest(name=name), timeout)

    def tokenize(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        model: str = "",
        timeout: float = UNARY_TIMEOUT,
    ) -> list[int]:
        """Token ids of a text, or of a conversation under the model's own template."""
        request = client_codec.write_tokenize(prompt, messages, model)
        return list(self._ask(self._stub.Tokenize, request, timeout).token_ids)

    def _ask(self, method: Any, request: Any, timeout: float | None) -> Any:
        try:
            return method(request, timeout=timeout)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error


class AsyncStream(AsyncIterator[Event]):
    """The events of one output as they come. Closing it, or leaving its `async with` block, cancels the request."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def __anext__(self) -> Event:
        try:
            message = await self._call.read()
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error
        if message is grpc.aio.EOF:
            raise StopAsyncIteration
        return client_codec.read_event(message)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancel what is left."""
        self._call.cancel()


class AsyncClient:
    """Client for asyncio: `stream` gives an AsyncStream, the others are coroutines. Must be made within a loop.

    What it takes is what Client takes.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        api_key: str = "",
        root_certificate: str | Path | None = None,
        credentials: Tls | grpc.ChannelCredentials | None = None,
    ) -> None:
        self._channel = open_channel(address, token=api_key, tls=_tls(root_certificate, credentials))
        self._stub: Any = gateway_pb2_grpc.GatewayServiceStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the channel; calls under way are cancelled."""
        await self._channel.close()

    def stream(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        token_ids: Sequence[int] | None = None,
        **options: Unpack[Options],
    ) -> AsyncStream:
        """See Client.stream."""
        request = client_codec.write_request(prompt, messages, token_ids, options)
        return AsyncStream(self._stub.Generate(request, timeout=options.get("timeout")))

    async def generate(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        token_ids: Sequence[int] | None = None,
        **options: Unpack[Options],
    ) -> Completion:
        """See Client.generate."""
        async with self.stream(prompt, messages=messages, token_ids=token_ids, **options) as events:
            return collect([event async for event in events])

    async def list_models(
        self,
        *,
        timeout: float = UNARY_TIMEOUT,  # noqa: ASYNC109  # the call's deadline, which the server sees
    ) -> list[Model]:
        """See Client.list_models."""
        message = await self._ask(self._stub.ListModels, gateway_pb2.ListModelsRequest(), timeout)
        return client_codec.read_models(message)

    async def load_lora_adapter(
        self,
        name: str,
        path: str,
        *,
        timeout: float = ADAPTER_TIMEOUT,  # noqa: ASYNC109  # the call's deadline, which the server sees
    ) -> Model:
        """See Client.load_lora_adapter."""
        request = gateway_pb2.LoadLoraAdapterRequest(name=name, path=path)
        return client_codec.read_model((await self._ask(self._stub.LoadLoraAdapter, request, timeout)).model)

    async def unload_lora_adapter(
        self,
        name: str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109  # the call's deadline, which the server sees
    ) -> None:
        """See Client.unload_lora_adapter."""
        await self._ask(self._stub.UnloadLoraAdapter, gateway_pb2.UnloadLoraAdapterRequest(name=name), timeout)

    async def tokenize(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        model: str = "",
        timeout: float = UNARY_TIMEOUT,  # noqa: ASYNC109  # the call's deadline, which the server sees
    ) -> list[int]:
        """See Client.tokenize."""
        request = client_codec.write_tokenize(prompt, messages, model)
        return list((await self._ask(self._stub.Tokenize, request, timeout)).token_ids)

    async def _ask(self, method: Any, request: Any, deadline: float | None) -> Any:
        try:
            return await method(request, timeout=deadline)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error
