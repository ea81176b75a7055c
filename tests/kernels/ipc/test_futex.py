"""Waiters wake when the word changes, when somebody rings, and at their limit; with and without futex."""

from __future__ import annotations

import ctypes
import threading
import time

import pytest

from slipstream_kernels.ipc import futex as futex_module
from slipstream_kernels.ipc.futex import Futex

HOW = pytest.mark.parametrize("futex", [futex_module._FUTEX, None], ids=["futex", "polls"])


def wait_until_changed(bell: Futex, word: ctypes.c_uint32, seen: int) -> threading.Thread:
    def wait() -> None:
        while word.value == seen:
            bell.wait(seen, 30.0)

    waiter = threading.Thread(target=wait)
    waiter.start()
    return waiter


@HOW
def test_a_change_and_a_ring_wake_all_waiters(futex: int | None) -> None:
    word = ctypes.c_uint32(2**32 - 1)
    bell = Futex(word, futex=futex)
    waiters = [wait_until_changed(bell, word, 2**32 - 1) for _ in range(3)]
    time.sleep(0.05)
    word.value = 0
    bell.ring()
    for waiter in waiters:
        waiter.join(20)
        assert not waiter.is_alive()


@HOW
def test_a_word_that_has_changed_before_is_not_waited_for(futex: int | None) -> None:
    begun = time.monotonic()
    Futex(ctypes.c_uint32(5), futex=futex).wait(4, 30.0)
    assert time.monotonic() - begun < 20


@HOW
@pytest.mark.parametrize("seconds", [-1.0, 0.0, 0.01])
def test_a_wait_ends_at_its_limit(futex: int | None, seconds: float) -> None:
    Futex(ctypes.c_uint32(5), futex=futex).wait(5, seconds)
