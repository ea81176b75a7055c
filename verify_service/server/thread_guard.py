"""Ends the process when a thread fails that it cannot do without."""

from __future__ import annotations

import logging
import os
import threading

_log = logging.getLogger(__name__)


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
