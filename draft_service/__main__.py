"""`python -m draft_service`: load the proposers, serve administration, attach to verify for as long as it runs."""

from __future__ import annotations

import sys

from slipstream.rpc.experiments import leave_out_event_engine


def main() -> int:
    """Run until terminated. Exit status 1 for a proposer or an address that will not do."""
    leave_out_event_engine()
    from draft_service.serving import run  # gRPC reads its environment when it is imported

    return run()


if __name__ == "__main__":
    sys.exit(main())
