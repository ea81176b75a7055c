"""`python -m verify_service`: load the model, serve it, drain on SIGTERM."""

from __future__ import annotations

import time

from slipstream.extras import explained
from slipstream.imports import importing
from slipstream.rpc.experiments import leave_out_event_engine
from slipstream.standard_streams import open_standard_streams
from slipstream.standby import stand_by


def main() -> None:
    """Run until terminated. Exit status 1 for a model, address or memory that will not do."""
    open_standard_streams()
    leave_out_event_engine()
    with explained("device", "the verify service"):
        stand_by(_prepare)
        begun = time.monotonic()
        with importing():
            from verify_service.server.command import run  # gRPC reads its environment when it is imported

        run(begun=begun)


def _prepare() -> None:
    from verify_service.server.standby import prepare  # as above

    prepare()


if __name__ == "__main__":
    main()
