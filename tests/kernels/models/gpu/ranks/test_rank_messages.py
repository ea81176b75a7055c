from __future__ import annotations

from pathlib import Path

import pytest

from support.forked import Forks
from support.forked_ranks import JOIN, one_dies, ranks


def test_messages_of_any_length_reach_every_rank(forks: Forks, tmp_path: Path) -> None:
    program = """
for length in (0, 1, FIRST_BLOCK - 8, FIRST_BLOCK - 7, 3 * FIRST_BLOCK):
    message = bytes(i * 7 % 256 for i in range(length))
    assert group.broadcast(message if rank == 0 else None) == message
group.wait_for_all()
print("done", rank)
group.close()
"""
    ended = ranks(forks, tmp_path / "port", JOIN + program, size=3)
    assert [(each.status, each.output.splitlines()[-1:]) for each in ended] == [
        (0, [f"done {rank}"]) for rank in range(3)
    ]


def test_those_apart_wait_for_none_of_the_group(forks: Forks, tmp_path: Path) -> None:
    """Long ones arrive while the others' main thread waits for a message that comes only when they have."""
    program = """
import threading
long = bytes(1 << 20)
def take():
    assert group.apart.broadcast(long if rank == 0 else None) == long
    group.apart.wait_for_all()
thread = threading.Thread(target=take)
thread.start()
if rank == 0:
    thread.join()
    group.broadcast(b"plan")
else:
    assert group.broadcast(None) == b"plan"
    thread.join()
print("done", rank)
group.close()
"""
    ended = ranks(forks, tmp_path / "port", JOIN + program)
    assert [(each.status, each.output.splitlines()[-1:]) for each in ended] == [
        (0, [f"done {rank}"]) for rank in range(2)
    ]


@pytest.mark.parametrize("dying", [0, 1])
@pytest.mark.parametrize("messages", ["group", "group.apart"])
def test_a_rank_that_dies_ends_the_others(forks: Forks, tmp_path: Path, dying: int, messages: str) -> None:
    one_dies(forks, tmp_path / "port", dying, f'{messages}.broadcast(b"plan" if rank == 0 else None)')
