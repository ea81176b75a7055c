"""A GPU that has failed under this process, by its own kernels or by those of another MPS client."""

from __future__ import annotations

import logging
import os
import sys

_log = logging.getLogger(__name__)


def device_lost() -> bool:
    """Whether the GPU has become unusable for this process.

    After a fault such as an illegal access every further call of the process fails, and nothing but its end helps.
    Errors that pass, such as a lack of memory, leave the device answering.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        _log.exception("the GPU does not answer")
        return True
    return False


def end_if_device_lost() -> None:
    """End the process with status 1 where the GPU is lost, without a word to any client.

    Gateways take up the requests of a session that breaks on the next process; an error they would pass on.
    """
    if device_lost():
        _log.critical("ending, to be started again")
        logging.shutdown()
        os._exit(1)
