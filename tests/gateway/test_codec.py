"""What comes from a verify service, as the gateway reads it."""

from __future__ import annotations

from gateway import codec
from slipstream.generation_types import FinishReason
from slipstream.v1 import verify_pb2


def test_an_end_for_a_reason_of_a_later_version_is_an_error_of_that_request_alone() -> None:
    message = verify_pb2.RequestOutput.FromString(
        verify_pb2.RequestOutput(request_id=3, finish_reason=9).SerializeToString()
    )
    assert codec.read_output(message).finish_reason is FinishReason.ERROR
