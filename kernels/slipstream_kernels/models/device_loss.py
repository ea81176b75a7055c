"""GPUs that this process has lost, after which it can compute nothing more on them."""

from __future__ import annotations

import logging
import sys

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
