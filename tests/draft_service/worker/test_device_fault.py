"""A stand-in takes the place of torch, in a process of its own: what counts is how that process ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import logging, sys, types
from draft_service.proposers.base import DraftRequest, Proposer
from draft_service.protocol.codec import AttachGrant
from draft_service.worker.draft_call import DraftCall
from draft_service.worker.worker import Worker

def synchronize(index):
    if {lost}:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

sys.modules["torch"] = types.SimpleNamespace(
    cuda=types.SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 1,
        memory_reserved=lambda index: 1000,
        synchronize=synchronize,
    )
)

class Broken(Proposer):
    name, max_nodes, max_depth = "broken", 4, 2
    def open(self, session, opening): pass
    def commit(self, session, token_ids): pass
    def close(self, session): pass
    def propose(self, requests): raise RuntimeError("a kernel failed")

logging.basicConfig()
worker = Worker([Broken()])
{act}
print("goes on")
"""
FAILS = "DraftCall(worker.proposers[0], [DraftRequest(1, 4, 2)], 9).result()"
LEAVES = "worker._leave()"


@pytest.mark.parametrize("act", [FAILS, LEAVES])
@pytest.mark.parametrize("lost", [True, False])
def test_only_a_lost_device_ends_the_process(lost, act):
    program = PROGRAM.format(lost=lost, act=act)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == int(lost), ended.stderr
    assert ("goes on" in ended.stdout) == (not lost)
    assert ("a GPU is lost" in ended.stderr) == lost
