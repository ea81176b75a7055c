"""GPUs and ranks that this process has lost, after which it can compute nothing more."""

from __future__ import annotations

import logging
import os
import sys

from slipstream_kernels.models.rank_error import RankError

_log = logging.getLogger(__name__)


def device_lost() -> bool:
    """Whether a GPU that this process has memory on has become unusable for it.

    After a fault such as an illegal access, by its own kernels or by those of another MPS client, every further call
    of the process fails, and nothing but its end helps. Errors that pass, such as a lack of memory, leave the device
    answering.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    try:
        for index in range(torch.cuda.device_count()):
            if torch.cuda.memory_reserved(index):
                torch.cuda.synchronize(index)
    except RuntimeError:
        _log.exception("a GPU does not answer")
        return True
    return False


def end_if_device_lost() -> None:
    """End the process with status 1 where a GPU is lost, or another rank of the model, without a word to any client.

    To be called while the error that may come of it is handled. Gateways take up the requests of a session that breaks
    on the next process; an error they would pass on.
    """
    if isinstance(sys.exception(), RankError) or device_lost():
        _log.critical("ending, to be started again", exc_info=True)
        logging.shutdown()
        os._exit(1)
