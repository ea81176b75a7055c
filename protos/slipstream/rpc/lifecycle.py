"""Termination of a service: the first SIGTERM or SIGINT drains, the second quits at once."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable

_log = logging.getLogger(__name__)

QUIT_STATUS = 130
"""Exit status after a second signal."""


async def run_until_terminated(drain: Callable[[], Awaitable[None]]) -> None:
    """Wait for SIGTERM or SIGINT, then run `drain` to its end. Must run in the main thread's loop."""
    loop = asyncio.get_running_loop()
    first = asyncio.Event()

    def received(number: signal.Signals) -> None:
        if first.is_set():
            _log.warning("%s again: quitting at once", number.name)
            logging.shutdown()
            os._exit(QUIT_STATUS)
        _log.info("%s: draining", number.name)
        first.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, received, number)
    await first.wait()
    await drain()
