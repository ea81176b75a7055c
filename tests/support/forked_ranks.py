"""Programs of which every rank of a group is a process."""

from __future__ import annotations

from pathlib import Path

from slipstream_kernels.models.gpu.ranks.rank_messages import FIRST_BLOCK
from support.forked import Ended, Forks

PRELUDE = f"""
import os, sys, time
from pathlib import Path
import torch
from slipstream_kernels.models.rank_error import RankError
from slipstream_kernels.models.gpu.ranks.rank_group import DistributedRankGroup, join_rendezvous, open_rendezvous

FIRST_BLOCK = {FIRST_BLOCK}
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
rank, size, port, timeout = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4])
if rank == 0:
    store = open_rendezvous(size, timeout=100)
    port.with_suffix(".new").write_text(str(store.port))
    port.with_suffix(".new").rename(port)
else:
    while not port.exists():
        time.sleep(0.01)
    store = join_rendezvous(int(port.read_text()), size, timeout=timeout)
"""
SECONDS = 100
"""What ranks on a busy machine may take to start."""

JOIN = f"""
group = DistributedRankGroup(torch.device("cpu"), store, rank=rank, size=size, timeout={SECONDS})
"""


def ranks(forks: Forks, port: Path, program: str, size: int = 2) -> list[Ended]:
    """Run `program` in every rank; returns when all of them have ended. `port`: the file that tells it."""
    return forks.together(
        *(("-c", PRELUDE + program, str(rank), str(size), str(port), str(SECONDS)) for rank in range(size))
    )


def one_dies(forks: Forks, port: Path, dying: int, call: str) -> None:
    """Of two ranks one dies; `call`, which the other makes again and again, ends with an error that names it."""
    program = f"""
group.wait_for_all()
if rank == {dying}:
    os._exit(9)
try:
    while True:  # until the system has noticed
        {call}
except RankError as error:
    print(error, flush=True)
os._exit(0)
"""
    ended = ranks(forks, port, JOIN + program)
    assert ended[dying].status == 9
    survivor = ended[1 - dying]
    assert survivor.status == 0, survivor
    assert f"rank {1 - dying} of 2" in survivor.output
