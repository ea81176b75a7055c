"""How many threads share the work of an operation on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Have the operations within done by the thread that calls them.

    Small ones gain nothing from a team of threads, which waits for its last one at each: where servers hold the cores,
    that takes many times as long as the work itself.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
