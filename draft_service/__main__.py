"""`python -m draft_service`: load the proposers, serve administration, attach to verify for as long as it runs."""

from __future__ import annotations

import sys

from slipstream.extras import explained
from slipstream.rpc.experiments import leave_out_event_engine
from slipstream.standard_streams import open_standard_streams
from slipstream.standby import stand_by


def main() -> int:
    """Run until terminated. Exit status 1 for a proposer or an address that will not do."""
    open_standard_streams()
    leave_out_event_engine()
    with explained("device", "the draft service"):
        stand_by(_prepare)
        from draft_service.server.server import run  # gRPC reads its environment when it is imported

        return run()


def _prepare() -> None:
    from draft_service.server.standby import prepare  # as above

    prepare()


if __name__ == "__main__":
    sys.exit(main())
