from __future__ import annotations

from pathlib import Path

import pytest

from support.forked import Forks
from support.forked_ranks import JOIN, PRELUDE, SECONDS, one_dies, ranks


def test_tensors_reach_every_rank(forks: Forks, tmp_path: Path) -> None:
    program = """
assert (group.rank, group.size) == (rank, 3)
for dtype in (torch.bfloat16, torch.float32, torch.int32):
    part = torch.arange(6).to(dtype).view(2, 3) + 10 * rank
    out = torch.full((3, 2, 3), 99).to(dtype)
    group.all_gather(out, part)
    for other in range(3):
        assert torch.equal(out[other], torch.arange(6).to(dtype).view(2, 3) + 10 * other)
group.wait_for_all()
print("done", rank)
group.close()
"""
    ended = ranks(forks, tmp_path / "port", JOIN + program, size=3)
    assert [(each.status, each.output.splitlines()[-1:]) for each in ended] == [
        (0, [f"done {rank}"]) for rank in range(3)
    ]


@pytest.mark.parametrize("dying", [0, 1])
def test_a_rank_that_dies_ends_the_others(forks: Forks, tmp_path: Path, dying: int) -> None:
    one_dies(forks, tmp_path / "port", dying, "group.all_gather(torch.empty(2, 4), torch.ones(4))")


def test_a_rank_that_does_not_come_is_reported(forks: Forks, tmp_path: Path) -> None:
    program = 'DistributedRankGroup(torch.device("cpu"), store, rank=rank, size=size, timeout=1)'
    (alone,) = forks.together(("-c", PRELUDE + program, "0", "2", str(tmp_path / "port"), str(SECONDS)))
    assert alone.status == 1
    assert "RankError: rank 0 of 2 could not join the others" in alone.output


def test_a_rendezvous_that_is_not_open_is_reported(forks: Forks, tmp_path: Path) -> None:
    port = tmp_path / "port"
    port.write_text("1")
    (alone,) = forks.together(("-c", PRELUDE, "1", "2", str(port), "1"))
    assert alone.status == 1
    assert "RankError: rank 0 does not answer at port 1" in alone.output
