"""Engines of twins are many small operations: threads that wait for one another would cost more than they save."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True, scope="session")
def _quick_interpreter() -> None:
    if os.environ.get("TRITON_INTERPRET") == "1":
        from support.interpreter import replace_once_a_launch  # loads triton

        replace_once_a_launch()
