"""A word is watched until it changes, or for a while."""

from __future__ import annotations

from queue import SimpleQueue
from threading import Thread

import numpy as np

from slipstream_kernels.sync.spin_wait import spin_wait

SECONDS = 30.0


def test_it_ends_after_its_looks_and_at_once_where_the_word_is_another() -> None:
    word = np.array([7], np.int64)
    spin_wait(word.ctypes.data, 7, 1000)
    spin_wait(word.ctypes.data, 8, 1 << 62)
    spin_wait(word.ctypes.data, 7, 0)


def test_a_change_by_another_thread_ends_it() -> None:
    word, done = np.zeros(1, np.int64), SimpleQueue[int]()

    def look() -> None:
        spin_wait(word.ctypes.data, 0, 1 << 62)
        done.put(int(word[0]))

    thread = Thread(target=look, daemon=True)
    thread.start()
    word[0] = -1
    assert done.get(timeout=SECONDS) == -1
    thread.join(SECONDS)
