from __future__ import annotations

import contextlib

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from gateway.text.wire_fields import check_fields
from slipstream.rpc.errors import InvalidArgumentError
from slipstream.v1 import gateway_pb2
from support.wire import inside

REQUEST = gateway_pb2.GenerateRequest
MOST = 4 * 1024 * 1024


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"\x32\x00" * 10**6, "stop"),
        (inside(4, b"\x0a\x00" * 10**6), "chat"),
        (inside(4, b"\x0a\x00") * 10**6, "chat"),
        (inside(4, inside(1, b"\x0a\x00" * 10**6)), "chat"),
        (inside(5, b"\x4a\x00" * 10**6), "sampling"),
        (inside(5, inside(12, b"\x01" * 10**6)), "sampling"),
        (inside(3, b"\x08\x01" * 10**6), "token_ids"),
        (inside(3, inside(1, b"\x01" * 10**6)), "token_ids"),
        (b"\x98\x06\x01" * 10**6, ""),
        (b"\x9b\x06" * 10**6, ""),
    ],
)
def test_too_many_fields_name_the_outermost(data: bytes, field: str) -> None:
    with pytest.raises(InvalidArgumentError, match="at most") as caught:
        check_fields(data, REQUEST.DESCRIPTOR, MOST)
    assert caught.value.field == field


def test_large_requests_of_use_pass() -> None:
    for request in (
        REQUEST(text="x" * MOST),
        REQUEST(token_ids={"ids": range(100_000, 700_000)}),
        REQUEST(chat={"messages": [{"role": "user", "content": "x" * 100}] * 20_000}),
        REQUEST(text="x", sampling={"logit_bias": dict.fromkeys(range(1024), 1.0), "stop_token_ids": range(128)}),
    ):
        check_fields(request.SerializeToString(), REQUEST.DESCRIPTOR, MOST)


@given(st.binary(max_size=200))
def test_any_bytes_are_left_to_the_decoder(data: bytes) -> None:
    check_fields(data, REQUEST.DESCRIPTOR, MOST)
    with contextlib.suppress(DecodeError):
        REQUEST.FromString(data)
