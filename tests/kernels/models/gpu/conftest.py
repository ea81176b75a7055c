"""Kernels of these tests are interpreted."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True, scope="session")
def _quick_interpreter() -> None:
    if os.environ.get("TRITON_INTERPRET") == "1":
        from support.interpreter import replace_once_a_launch  # loads triton

        replace_once_a_launch()
