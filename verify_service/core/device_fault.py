"""What the verify service does about GPUs and ranks that it has lost, after which it can compute nothing more."""

from __future__ import annotations

import logging
import os
import sys

from slipstream_kernels.models.device_loss import device_lost
from slipstream_kernels.models.rank_error import RankError

_log = logging.getLogger(__name__)


def end_if_device_lost() -> None:
    """End the process with status 1 where a GPU is lost, or another rank of the model, without a word to any client.

    To be called while the error that may come of it is handled. Gateways take up the requests of a session that breaks
    on the next process; an error they would pass on.
    """
    if isinstance(sys.exception(), RankError) or device_lost():
        _log.critical("ending, to be started again", exc_info=True)
        logging.shutdown()
        os._exit(1)
