from __future__ import annotations

import os
import subprocess
import sys

import pytest

from slipstream_kernels.models.gpu.rank_group import FIRST_BLOCK

PRELUDE = f"""
import os, sys, time
import torch
from slipstream_kernels.models.rank_error import RankError
from slipstream_kernels.models.gpu.rank_group import DistributedRankGroup, join_rendezvous, open_rendezvous

FIRST_BLOCK = {FIRST_BLOCK}
rank, size = int(sys.argv[1]), int(sys.argv[2])
if rank == 0:
    store = open_rendezvous(size, timeout=100)
    print(store.port, flush=True)
else:
    store = join_rendezvous(int(sys.argv[3]), size, timeout=float(sys.argv[4]))
"""
SECONDS = 100
"""What ranks on a busy machine may take to start."""

JOIN = f"""
group = DistributedRankGroup(torch.device("cpu"), store, rank=rank, size=size, timeout={SECONDS})
"""


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + program, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "GLOO_SOCKET_IFNAME": "lo"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ranks(program: str, size: int = 2) -> list[subprocess.CompletedProcess[str]]:
    """Run `program` in every rank; returns when all of them have ended."""
    leader = start(program, 0, size)
    assert leader.stdout is not None
    port = leader.stdout.readline().strip()
    ended = []
    for process in [leader, *(start(program, rank, size, port, SECONDS) for rank in range(1, size))]:
        out, err = process.communicate(timeout=250)
        ended.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
    return ended


def test_tensors_and_messages_reach_every_rank() -> None:
    program = """
assert (group.rank, group.size) == (rank, 3)
for dtype in (torch.bfloat16, torch.float32, torch.int32):
    part = torch.arange(6).to(dtype).view(2, 3) + 10 * rank
    out = torch.full((3, 2, 3), 99).to(dtype)
    group.all_gather(out, part)
    for other in range(3):
        assert torch.equal(out[other], torch.arange(6).to(dtype).view(2, 3) + 10 * other)
for length in (0, 1, FIRST_BLOCK - 8, FIRST_BLOCK - 7, 3 * FIRST_BLOCK):
    message = bytes(i * 7 % 256 for i in range(length))
    assert group.broadcast(message if rank == 0 else None) == message
group.wait_for_all()
print("done", rank)
group.close()
"""
    ended = ranks(JOIN + program, size=3)
    assert [process.stdout.strip() for process in ended] == ["done 0", "done 1", "done 2"], ended


@pytest.mark.parametrize("dying", [0, 1])
@pytest.mark.parametrize("call", ["broadcast", "all_gather"])
def test_a_rank_that_dies_ends_the_others(dying: int, call: str) -> None:
    program = f"""
group.wait_for_all()
if rank == {dying}:
    os._exit(9)
try:
    while True:  # rank 0 may send what nobody receives until the system has noticed
        if "{call}" == "broadcast":
            group.broadcast(b"plan" if rank == 0 else None)
        else:
            group.all_gather(torch.empty(2, 4), torch.ones(4))
except RankError as error:
    print(error, flush=True)
os._exit(0)
"""
    ended = ranks(JOIN + program)
    assert ended[dying].returncode == 9
    survivor = ended[1 - dying]
    assert survivor.returncode == 0, survivor
    assert f"rank {1 - dying} of 2" in survivor.stdout


def test_a_rank_that_does_not_come_is_reported() -> None:
    program = 'DistributedRankGroup(torch.device("cpu"), store, rank=rank, size=size, timeout=1)'
    alone = start(program, 0, 2)
    _, err = alone.communicate(timeout=250)
    assert alone.returncode == 1
    assert "RankError: rank 0 of 2 could not join the others" in err


def test_a_rendezvous_that_is_not_open_is_reported() -> None:
    alone = start("", 1, 2, 1, 1)
    _, err = alone.communicate(timeout=250)
    assert alone.returncode == 1
    assert "RankError: rank 0 does not answer at port 1" in err
