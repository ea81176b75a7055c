"""Errors as the OpenAI API writes them."""

from __future__ import annotations

import pytest

from gateway.http.errors import error_response
from slipstream.rpc.errors import InvalidArgumentError, ResourceExhaustedError, SlipstreamError, UnavailableError


@pytest.mark.parametrize(
    ("error", "header"),
    [
        (UnavailableError("away"), "1"),
        (UnavailableError("away", retry_after=0.0), "1"),
        (ResourceExhaustedError("full", retry_after=2.1), "3"),
        (InvalidArgumentError("wrong", retry_after=9.0), None),
    ],
)
def test_retry_after_says_whole_seconds_where_a_retry_may_help(error: SlipstreamError, header: str | None) -> None:
    assert error_response(error).headers.get("retry-after") == header
