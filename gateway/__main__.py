"""`python -m gateway`."""

from __future__ import annotations

from slipstream.extras import explained
from slipstream.rpc.experiments import leave_out_event_engine
from slipstream.standard_streams import open_standard_streams


def main() -> None:
    """Run the gateway."""
    open_standard_streams()
    leave_out_event_engine()
    with explained("gateway", "the gateway"):
        from gateway.server import main as serve  # gRPC reads its environment when it is imported

        serve()


if __name__ == "__main__":
    main()
