"""`python -m gateway`."""

from __future__ import annotations

import os
from typing import Final

GRPC_EXPERIMENTS: Final = "-event_engine_client,-event_engine_listener"
"""gRPC's event engine hands every message over between two more threads; without it a streamed token costs a third
less CPU (python -m benchmarks.gateway_cost). A value set from outside wins."""


def main() -> None:
    """Run the gateway."""
    os.environ.setdefault("GRPC_EXPERIMENTS", GRPC_EXPERIMENTS)
    from gateway.server import main as serve  # gRPC reads its environment when it is imported

    serve()


if __name__ == "__main__":
    main()
