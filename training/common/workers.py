"""Worker processes that do one core's work and never outlive those who started them."""

from __future__ import annotations

import os
import threading
from multiprocessing import parent_process


def follow_parent() -> None:
    """Have this process end when the one that started it does, however that ends; its tokenizers use one core."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    parent = parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
