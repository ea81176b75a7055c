"""Ends the process when its loop stands still, as with a kernel that never returns, or fails.

Gateways resume its requests.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import threading
import time
from collections.abc import Callable

_log = logging.getLogger(__name__)

LONGEST_PAUSE = 10.0
"""Seconds between two looks at most."""


def end_with_thread(name: str) -> None:
    """From here on an exception that ends the thread of this name ends the process too, with status 1.

    Without its loop the service would go on listening and leave every request waiting; gateways take up the requests
    of a process that is gone.
    """
    before = threading.excepthook

    def failed(args: threading.ExceptHookArgs) -> None:
        before(args)
        if args.thread is not None and args.thread.name == name:
            _log.critical("the thread %r has failed: ending, to be started again", name, exc_info=args.exc_value)
            logging.shutdown()
            os._exit(1)

    threading.excepthook = failed


class Watchdog:
    """Looks on from a thread of its own whether there is work, and whether it makes progress.

    `idle` tells whether there is nothing to do, `progress` gives something that changes with every step. After
    `seconds` with work and without a change `end` is called.
    """

    def __init__(
        self,
        seconds: float,
        idle: Callable[[], bool],
        progress: Callable[[], object],
        end: Callable[[float], None] | None = None,
    ) -> None:
        self._seconds = seconds
        self._idle = idle
        self._progress = progress
        self._end = end or _end
        self._pause = min(LONGEST_PAUSE, seconds / 10)

    def start(self) -> None:
        """Watch from now on, as long as the process lives."""
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def _watch(self) -> None:
        seen, since = self._progress(), time.monotonic()
        while True:
            time.sleep(self._pause)
            now = self._progress()
            if self._idle() or now != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since >= self._seconds:
                self._end(self._seconds)
                return


def _end(seconds: float) -> None:
    """With the threads' stacks on standard error, and without a word to any client."""
    _log.critical("no step was finished in %g s, ending, to be started again", seconds)
    logging.shutdown()
    faulthandler.dump_traceback(all_threads=True)
    os._exit(1)
