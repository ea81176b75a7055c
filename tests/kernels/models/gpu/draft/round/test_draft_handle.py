"""Trees that a device works on, read by whoever is first."""

from __future__ import annotations

import threading

import numpy as np

from slipstream_kernels.models.gpu.draft.round.draft_handle import DraftHandle
from slipstream_kernels.ops.gpu.draft_trees import COUNT, PARENTS, TREE_WIDTH


class Event:
    """Comes when told so."""

    def __init__(self) -> None:
        self.come = threading.Event()
        self.waiting = 0

    def query(self) -> bool:
        return self.come.is_set()

    def synchronize(self) -> None:
        self.waiting += 1
        assert self.come.wait(30.0)


def words_of(token: int) -> np.ndarray:
    words = np.zeros((1, TREE_WIDTH), np.int32)
    words[0, 0], words[0, COUNT], words[0, PARENTS] = token, 1, -1
    return words


def test_trees_are_kept_once_read_whatever_becomes_of_their_memory() -> None:
    words, event = words_of(7), Event()
    ticket = DraftHandle(words, event)  # type: ignore[arg-type]  # as much of an event as is used
    assert not ticket.wait(0.0) and not ticket.wait(0.001)
    event.come.set()
    assert ticket.wait(0.0)
    assert ticket.trees()[0].token_ids == (7,)
    words[:] = words_of(8)
    event.come.clear()  # of another round
    assert ticket.wait(0.0) and ticket.read(0).token_ids == (7,)


def test_threads_that_wait_at_once_get_the_same_trees() -> None:
    words, event = words_of(7), Event()
    ticket = DraftHandle(words, event)  # type: ignore[arg-type]
    found = []
    threads = [threading.Thread(target=lambda: found.append(ticket.trees())) for _ in range(4)]
    for thread in threads:
        thread.start()
    event.come.set()
    for thread in threads:
        thread.join(30.0)
    assert len(found) == 4 and all(trees is found[0] for trees in found)
    assert event.waiting == 1
