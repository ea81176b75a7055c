"""A stand-in takes the place of torch, in a process of its own: what counts is how that process ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys, types

def synchronize():
    {synchronize}

sys.modules["torch"] = types.SimpleNamespace(
    cuda=types.SimpleNamespace(is_initialized=lambda: {initialized}, synchronize=synchronize)
)
import logging
from verify_service.device_fault import end_if_device_lost
logging.basicConfig()
end_if_device_lost()
print("goes on")
"""
FAULT = "raise RuntimeError('CUDA error: an illegal memory access was encountered')"


@pytest.mark.parametrize(
    ("synchronize", "initialized", "status"), [(FAULT, True, 1), ("return", True, 0), (FAULT, False, 0)]
)
def test_only_a_lost_device_ends_the_process(synchronize, initialized, status):
    program = PROGRAM.format(synchronize=synchronize, initialized=initialized)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode == status, run.stderr
    assert ("goes on" in run.stdout) == (status == 0)
    assert ("illegal memory access" in run.stderr) == (status == 1)
