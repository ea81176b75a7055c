"""gRPC messages that mean harm: refused by name within the bounds of time on the event loop and of memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipstream.rpc.channel import from_rpc_error
from slipstream.v1 import gateway_pb2
from support.fake_verify import FakeVerify
from support.gateway_process import GatewayProcess
from support.loop_holds import LoopHolds
from support.peak_memory import PeakMemory
from support.wire import inside

MOST = 4 * 1024 * 1024
MEMORY_FACTOR = 10
LEAST_MEMORY = 8 * 1024 * 1024
"""What smaller messages may take too: buffers, and pages that are touched for the first time."""
SERVICE = "/slipstream.v1.GatewayService"

HALF = MOST // 2 - 32
SHAPES: dict[str, tuple[bytes, str]] = {
    "messages": (inside(4, b"\x0a\x00" * HALF), "chat"),
    "chats": (inside(4, b"\x0a\x00") * (HALF // 2), "chat"),
    "stop": (b"\x32\x00" * HALF, "stop"),
    "biases": (inside(5, b"\x4a\x00" * HALF), "sampling"),
    "ids": (inside(3, inside(1, b"\x01" * (2 * HALF))), "token_ids"),
    "single ids": (inside(3, b"\x08\x01" * HALF), "token_ids"),
    "stop ids": (inside(5, inside(12, b"\x01" * (2 * HALF))), "sampling"),
    "text": (inside(2, b"ab, " * (HALF // 2)), "text"),
    "content": (inside(4, inside(1, inside(2, b"ab, " * (HALF // 2)))), "chat.messages"),
    "unknown": (b"\x98\x06\x01" * (HALF // 2), ""),
}
UNITS = [b"\x32\x00", b"\x0a\x00", b"\x4a\x00", b"\x08\x01", b"\x01", b"\x98\x06\x01", b"\x9b\x06", b"ab, "]


@pytest.fixture(scope="module")
def hostile_gateway(shared_verify: FakeVerify, tokenizer_folder: Path) -> Iterator[GatewayProcess]:
    with GatewayProcess(tokenizer_folder, shared_verify.address) as gateway:
        for _ in range(8):
            assert call(gateway, "Generate", gateway_pb2.GenerateRequest(text="x").SerializeToString()) is None
        yield gateway
        assert gateway.process.poll() is None
        assert "Traceback" not in gateway.logs


def call(gateway: GatewayProcess, method: str, data: bytes) -> grpc.RpcError | None:
    """Send `data`; returns how it was refused."""
    with grpc.insecure_channel(gateway.grpc_address, [("grpc.max_send_message_length", -1)]) as channel:
        try:
            if method == "Generate":
                list(channel.unary_stream(f"{SERVICE}/{method}")(data, timeout=120))
            else:
                channel.unary_unary(f"{SERVICE}/{method}")(data, timeout=120)
        except grpc.RpcError as error:
            return error
    return None


def check(gateway: GatewayProcess, method: str, data: bytes) -> grpc.RpcError | None:
    """Send `data`, and hold the gateway to its bounds."""
    holds, memory = LoopHolds(gateway.http_url), PeakMemory(gateway.process.pid)
    error = call(gateway, method, data)
    assert memory.grown() <= max(LEAST_MEMORY, MEMORY_FACTOR * len(data))
    assert holds.beyond() == 0
    return error


@pytest.mark.parametrize("name", SHAPES)
def test_a_message_up_to_the_limit_is_refused_by_name(hostile_gateway: GatewayProcess, name: str) -> None:
    data, field = SHAPES[name]
    error = check(hostile_gateway, "Generate", data)
    assert error is not None
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert from_rpc_error(error).field == field


@settings(max_examples=30, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(
    method=st.sampled_from(["Generate", "Tokenize", "ListModels"]),
    numbers=st.lists(st.sampled_from([1, 2, 3, 4, 5, 6, 7, 9, 12, 15]), max_size=3),
    unit=st.sampled_from(UNITS) | st.binary(min_size=1, max_size=9),
    exponent=st.integers(6, 22),
)
def test_any_message_is_answered_within_bounds(
    hostile_gateway: GatewayProcess, method: str, numbers: list[int], unit: bytes, exponent: int
) -> None:
    data = unit * ((2**exponent - 64) // len(unit))
    for number in numbers:
        data = inside(number, data)
    error = check(hostile_gateway, method, data)
    if error is not None:
        assert error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND), error


def test_after_all_of_it_requests_are_served(hostile_gateway: GatewayProcess) -> None:
    assert call(hostile_gateway, "Generate", gateway_pb2.GenerateRequest(text="x").SerializeToString()) is None
