"""What the draft service does about a lost GPU: an MPS server takes no client until those that it had have ended."""

from __future__ import annotations

import logging
import os

from slipstream_kernels.models.device_loss import device_lost

_log = logging.getLogger(__name__)


def end_if_device_lost() -> None:
    """End the process with status 1 where a GPU is lost: no proposer on it would ever make a tree again."""
    if device_lost():
        _log.critical("ending, to be started again: a GPU is lost")
        logging.shutdown()
        os._exit(1)
