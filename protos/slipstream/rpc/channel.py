"""Client channels: one set of limits, keepalive and back-off for every connection of the project."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from slipstream.rpc.errors import SlipstreamError, error_of
from slipstream.rpc.tls import Tls
from slipstream.rpc.unix_socket import is_unix

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""Largest message either end sends or takes."""

ERROR_FIELD_KEY = "slipstream-error-field"
"""Trailing metadata that names the offending field of an INVALID_ARGUMENT."""

RETRY_AFTER_KEY = "slipstream-retry-after-seconds"
"""Trailing metadata that says, as a decimal number, when a refused call may succeed."""


def keepalive_options(time_ms: int = 15_000, timeout_ms: int = 5_000) -> tuple[tuple[str, int], ...]:
    """A dead peer is found within the sum of both, on idle connections too: within 20 s by default."""
    return (
        ("grpc.keepalive_time_ms", time_ms),
        ("grpc.keepalive_timeout_ms", timeout_ms),
        # Every ping has a timeout of its own, a minute by default; that of keepalive does not shorten it.
        ("grpc.http2.ping_timeout_ms", timeout_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    )


KEEPALIVE_OPTIONS = keepalive_options()
"""Of both ends of every connection, where an end does not ask more often."""

PROMPT_KEEPALIVE_OPTIONS = keepalive_options(2_000, 3_000)
"""Of an end that has another peer to turn to: the peer, or the network, is found gone within 5 s.

gRPC answers pings on threads that need no interpreter lock: a peer whose Python is busy for longer is not given up.
"""

SHORTEST_PING_MS = 1_000
"""Between two pings that a server takes; a client that asks more often is sent away."""

LIMIT_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # Messages are small: measuring the bandwidth for each costs more than a window of 1 MiB ever will.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1024 * 1024),
)

_CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    *LIMIT_OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # In spite of its name no pause: how long one attempt to connect may take, handshakes and the server's first frame
    # included. A call that does not wait fails with its attempt.
    ("grpc.min_reconnect_backoff_ms", 10_000),
    # Two channels to one address must not share a connection: flow control is a connection's.
    ("grpc.use_local_subchannel_pool", 1),
)


def open_channel(
    address: str,
    *,
    token: str = "",
    tls: Tls | grpc.ChannelCredentials | None = None,
    keepalive: tuple[tuple[str, int], ...] = KEEPALIVE_OPTIONS,
) -> grpc.aio.Channel:
    """An asyncio channel to `host:port` or `unix:PATH`; it connects on first use and reconnects by itself.

    With a token every call carries `authorization: Bearer TOKEN`. Without `tls`, and over a Unix socket, it is in plain
    text. `keepalive`: as `keepalive_options` makes them, no ping sooner than `SHORTEST_PING_MS` after another.
    """
    interceptors = _bearer_interceptors(token) if token else None
    if tls is None or is_unix(address):
        return grpc.aio.insecure_channel(address, (*keepalive, *_CHANNEL_OPTIONS), interceptors=interceptors)
    options = (*keepalive, *_options(tls))
    return grpc.aio.secure_channel(address, _credentials(tls), options, interceptors=interceptors)


def open_sync_channel(
    address: str, *, token: str = "", tls: Tls | grpc.ChannelCredentials | None = None
) -> grpc.Channel:
    """A blocking channel; otherwise as `open_channel`."""
    if tls is None or is_unix(address):
        channel = grpc.insecure_channel(address, (*KEEPALIVE_OPTIONS, *_CHANNEL_OPTIONS))
    else:
        channel = grpc.secure_channel(address, _credentials(tls), (*KEEPALIVE_OPTIONS, *_options(tls)))
    return grpc.intercept_channel(channel, _SyncBearer(token)) if token else channel


def _credentials(tls: Tls | grpc.ChannelCredentials) -> grpc.ChannelCredentials:
    return tls.channel_credentials() if isinstance(tls, Tls) else tls


def _options(tls: Tls | grpc.ChannelCredentials) -> tuple[tuple[str, int | str], ...]:
    name = tls.server_name if isinstance(tls, Tls) else ""
    return (*_CHANNEL_OPTIONS, *((("grpc.ssl_target_name_override", name),) if name else ()))


def from_rpc_error(error: grpc.RpcError) -> SlipstreamError:
    """The domain error for a failed call, its field restored from the trailing metadata."""
    if not isinstance(error, grpc.aio.AioRpcError | grpc.Call):
        return error_of(grpc.StatusCode.UNKNOWN.value[0], str(error))
    code: grpc.StatusCode = error.code()
    metadata = {
        key: value if isinstance(value, str) else value.decode("ascii", "replace")
        for key, value in error.trailing_metadata() or ()
    }
    found = error_of(code.value[0], error.details() or code.name, metadata.get(ERROR_FIELD_KEY, ""))
    found.retry_after = _seconds(metadata.get(RETRY_AFTER_KEY))
    return found


def _seconds(text: str | None) -> float | None:
    """A finite number of seconds, not below 0; None for anything else a peer may send."""
    try:
        seconds = float(text or "")
    except ValueError:
        return None
    return seconds if 0.0 <= seconds < math.inf else None


def _with_bearer(details: grpc.aio.ClientCallDetails, token: str) -> grpc.aio.ClientCallDetails:
    metadata = grpc.aio.Metadata(*(details.metadata or ()))
    metadata.add("authorization", f"Bearer {token}")
    return grpc.aio.ClientCallDetails(
        method=details.method,
        timeout=details.timeout,
        metadata=metadata,
        credentials=details.credentials,
        wait_for_ready=details.wait_for_ready,
    )


# grpc.aio files an interceptor under the first of the four kinds it is an instance of, hence one class a kind.
_Continuation = Callable[[grpc.aio.ClientCallDetails, Any], Awaitable[Any]]


class _UnaryUnaryBearer(grpc.aio.UnaryUnaryClientInterceptor):
    __slots__ = ("_token",)

    def __init__(self, token: str) -> None:
        self._token = token

    async def intercept_unary_unary(
        self, continuation: _Continuation, client_call_details: grpc.aio.ClientCallDetails, request: Any
    ) -> Any:
        return await continuation(_with_bearer(client_call_details, self._token), request)


class _UnaryStreamBearer(grpc.aio.UnaryStreamClientInterceptor):
    __slots__ = ("_token",)

    def __init__(self, token: str) -> None:
        self._token = token

    async def intercept_unary_stream(
        self, continuation: _Continuation, client_call_details: grpc.aio.ClientCallDetails, request: Any
    ) -> Any:
        return await continuation(_with_bearer(client_call_details, self._token), request)


class _StreamStreamBearer(grpc.aio.StreamStreamClientInterceptor):
    __slots__ = ("_token",)

    def __init__(self, token: str) -> None:
        self._token = token

    async def intercept_stream_stream(
        self, continuation: _Continuation, client_call_details: grpc.aio.ClientCallDetails, request_iterator: Any
    ) -> Any:
        return await continuation(_with_bearer(client_call_details, self._token), request_iterator)


def _bearer_interceptors(token: str) -> list[grpc.aio.ClientInterceptor]:
    return [_UnaryUnaryBearer(token), _UnaryStreamBearer(token), _StreamStreamBearer(token)]


class _SyncBearer(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    __slots__ = ("_token",)

    def __init__(self, token: str) -> None:
        self._token = token

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return continuation(self._details(client_call_details), request)

    def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return continuation(self._details(client_call_details), request)

    def intercept_stream_stream(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return continuation(self._details(client_call_details), request_iterator)

    def _details(self, details: Any) -> Any:
        return _with_bearer(details, self._token)
