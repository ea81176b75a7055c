"""What a server's prices promise of speculation while a load is played."""

from __future__ import annotations

from dataclasses import dataclass

import grpc

from benchmarks.lib.runner import verify_state
from slipstream.v1 import verify_pb2

NOTHING = verify_pb2.SpeculationForecast()


@dataclass(frozen=True, slots=True)
class Forecast:
    """The sums that a verify service at `address` keeps; without an address there are none."""

    address: str = ""

    def sums(self) -> verify_pb2.SpeculationForecast:
        """Of the moment; nothing where no service answers."""
        try:
            return verify_state(self.address).forecast if self.address else NOTHING
        except grpc.RpcError:
            return NOTHING


def promised(before: verify_pb2.SpeculationForecast, after: verify_pb2.SpeculationForecast) -> dict[str, float | None]:
    """Of the steps between: how many times plain decoding's tokens a second they promised, and the part with trees.

    None where there was no step of requests whose trees are as large as pays.
    """
    steps = after.steps - before.steps
    seconds, plain_seconds = after.seconds - before.seconds, after.plain_seconds - before.plain_seconds
    if steps <= 0 or seconds <= 0 or plain_seconds <= 0:
        return {"predicted_gain": None, "steps_with_trees": None}
    tokens, plain_tokens = after.tokens - before.tokens, after.plain_tokens - before.plain_tokens
    return {
        "predicted_gain": tokens / seconds * plain_seconds / plain_tokens,
        "steps_with_trees": (after.drafted_steps - before.drafted_steps) / steps,
    }
