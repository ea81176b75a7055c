"""Kernels run on the GPU where there is one, else in Triton's interpreter, chosen before it is imported."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True, scope="session")
def _quick_interpreter() -> None:
    if os.environ.get("TRITON_INTERPRET") == "1":
        from support.interpreter import replace_once_a_launch  # loads triton

        replace_once_a_launch()


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where the kernels under test run."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
