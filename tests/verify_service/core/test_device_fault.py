"""A stand-in takes the place of torch, in a process of its own: what counts is how that process ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import logging, sys, types
from slipstream_kernels.models.rank_error import RankError
from verify_service.core.device_fault import end_if_device_lost

def synchronize(index):
    if index == {faulty}:
        raise RuntimeError('CUDA error: an illegal memory access was encountered')
    assert index == 1, "a device that this process does not use"

sys.modules["torch"] = types.SimpleNamespace(
    cuda=types.SimpleNamespace(
        is_initialized=lambda: {initialized},
        device_count=lambda: 3,
        memory_reserved=lambda index: 1000 * (index == 1),
        synchronize=synchronize,
    )
)
logging.basicConfig()
try:
    raise {error}("the step failed")
except RuntimeError:
    end_if_device_lost()
print("goes on")
"""


def run(*, faulty: int | None, initialized: bool = True, error: str = "RuntimeError") -> subprocess.CompletedProcess:
    program = PROGRAM.format(faulty=faulty, initialized=initialized, error=error)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize(
    ("faulty", "initialized", "status"), [(1, True, 1), (None, True, 0), (0, True, 0), (1, False, 0)]
)
def test_only_a_lost_device_ends_the_process(faulty, initialized, status):
    ended = run(faulty=faulty, initialized=initialized)
    assert ended.returncode == status, ended.stderr
    assert ("goes on" in ended.stdout) == (status == 0)
    assert ("illegal memory access" in ended.stderr) == (status == 1)


def test_a_lost_rank_ends_the_process():
    ended = run(faulty=None, error="RankError")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "RankError: the step failed" in ended.stderr
