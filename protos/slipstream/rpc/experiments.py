"""What gRPC is told by its environment, which it reads as it is imported; hence nothing here imports it."""

from __future__ import annotations

import os
from typing import Final

GRPC_EXPERIMENTS: Final = "-event_engine_client,-event_engine_listener"
"""gRPC's event engine hands every message over between two more threads. Without it a streamed token costs the gateway
a third less CPU (python -m benchmarks.gateway_cost), and a process that echoes messages of a stream changes threads
five times a message instead of nine."""


def leave_out_event_engine() -> None:
    """To be called before gRPC is imported; a value set from outside wins."""
    os.environ.setdefault("GRPC_EXPERIMENTS", GRPC_EXPERIMENTS)
