"""Log lines of a service: `2026-01-31 12:00:00.250 INFO  verify: message`, on standard error."""

from __future__ import annotations

import logging
import sys


def set_up_logging(service: str, level: str) -> None:
    """Send all log records of level `level` ("debug", "info", "warning", "error") and above to standard error.

    `service` names the process in each line. Calling it again replaces the earlier set-up.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        logging.Formatter(
            f"%(asctime)s.%(msecs)03d %(levelname)-7s {service.replace('%', '%%')}: %(message)s", "%Y-%m-%d %H:%M:%S"
        )
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for chatty in ("grpc", "numba", "asyncio"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
