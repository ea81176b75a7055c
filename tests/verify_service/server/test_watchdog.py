"""Real threads: what stands still ends, and what fails; nothing else does."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading

import pytest

from verify_service.server.watchdog import Watchdog

FAILING = """
import logging, threading
from verify_service.server.watchdog import end_with_thread
logging.basicConfig()
end_with_thread("verify-loop")
thread = threading.Thread(target=lambda: 1 / 0, name="{name}")
thread.start()
thread.join()
print("goes on")
"""
STUCK = """
import threading, time
from verify_service.server.watchdog import Watchdog

def never_returns():
    threading.Event().wait()

threading.Thread(target=never_returns, daemon=True).start()
Watchdog(0.2, lambda: False, lambda: 0).start()
time.sleep(120)
"""


def test_a_loop_that_stands_still_ends_the_process_and_shows_where():
    ended = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, check=False, timeout=100)
    assert ended.returncode == 1
    assert "never_returns" in ended.stderr


def looks(idle, progress, count):
    """Whether a watchdog that has looked so many times has ended anything."""
    ended, over = threading.Event(), threading.Event()

    def seen():
        if next(number) == count:
            over.set()
        return progress()

    number = itertools.count(1)

    def end(seconds):
        ended.set()
        over.set()

    Watchdog(0.02, idle, seen, end).start()
    assert over.wait(60)
    return ended.is_set()


def test_one_that_has_nothing_to_do_or_moves_on_is_left_alone():
    steps = itertools.count()
    assert not looks(lambda: True, lambda: 0, 60)
    assert not looks(lambda: False, lambda: next(steps), 60)
    assert looks(lambda: False, lambda: 0, 10**6)


@pytest.mark.parametrize(("name", "status"), [("verify-loop", 1), ("other", 0)])
def test_the_process_ends_with_the_thread_it_needs(name: str, status: int) -> None:
    run = subprocess.run(
        [sys.executable, "-c", FAILING.format(name=name)], capture_output=True, text=True, check=False, timeout=60
    )
    assert run.returncode == status
    assert ("goes on" in run.stdout) == (status == 0)
    assert "ZeroDivisionError" in run.stderr
