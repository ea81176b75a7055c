from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from slipstream_kernels.models.gpu.rank_group import FIRST_BLOCK

PRELUDE = f"""
import torch
from slipstream_kernels.models.gpu.rank_group import DistributedRankGroup, RankError

FIRST_BLOCK = {FIRST_BLOCK}
"""
JOIN = """
group = DistributedRankGroup(torch.device("cpu"), timeout=20)
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def ranks(program: str, size: int = 2, started: int | None = None) -> list[subprocess.CompletedProcess[str]]:
    """Run `program` in the first `started` of `size` ranks; returns when all of them have ended."""
    port = free_port()
    processes = []
    for rank in range(size if started is None else started):
        place = {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", PRELUDE + program],
                env=os.environ | place | {"PYTHONPATH": os.pathsep.join(sys.path)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    ended = []
    for process in processes:
        out, err = process.communicate(timeout=120)
        ended.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
    return ended


def test_tensors_and_messages_reach_every_rank() -> None:
    program = (
        JOIN
        + """
assert group.size == 3
for dtype in (torch.bfloat16, torch.float32):
    part = torch.arange(6, dtype=dtype).view(2, 3) + 10 * group.rank
    out = torch.full((3, 2, 3), torch.nan, dtype=dtype)
    group.all_gather(out, part)
    for rank in range(3):
        assert torch.equal(out[rank], torch.arange(6, dtype=dtype).view(2, 3) + 10 * rank)
for length in (0, 1, FIRST_BLOCK - 8, FIRST_BLOCK - 7, 3 * FIRST_BLOCK):
    message = bytes(i * 7 % 256 for i in range(length))
    assert group.broadcast(message if group.rank == 0 else None) == message
group.wait_for_all()
print("done", group.rank)
group.close()
"""
    )
    ended = ranks(program, size=3)
    assert [process.stdout.strip() for process in ended] == ["done 0", "done 1", "done 2"], ended


@pytest.mark.parametrize("dying", [0, 1])
@pytest.mark.parametrize("call", ["broadcast", "all_gather"])
def test_a_rank_that_dies_ends_the_others(dying: int, call: str) -> None:
    program = f"""{JOIN}
import os
group.wait_for_all()
if group.rank == {dying}:
    os._exit(9)
part = torch.ones(4)
try:
    while True:  # rank 0 may send what nobody receives until the system has noticed
        if "{call}" == "broadcast":
            group.broadcast(b"plan" if group.rank == 0 else None)
        else:
            group.all_gather(torch.empty(2, 4), part)
except RankError as error:
    print(error)
os._exit(0)
"""
    ended = ranks(program)
    assert ended[dying].returncode == 9
    survivor = ended[1 - dying]
    assert survivor.returncode == 0, survivor
    assert f"rank {1 - dying} of 2" in survivor.stdout


def test_a_rank_that_does_not_come_is_reported() -> None:
    (alone,) = ranks('DistributedRankGroup(torch.device("cpu"), timeout=1)', started=1)
    assert alone.returncode == 1
    assert "RankError: rank 0 could not join the other ranks" in alone.stderr
