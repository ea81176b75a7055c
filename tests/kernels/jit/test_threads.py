from __future__ import annotations

import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from slipstream_kernels.jit.compiler import Job
from slipstream_kernels.jit.intrinsics import atomic_add, pointer_i32, record_at
from slipstream_kernels.jit.threads import COUNTER_BYTES, Team, claim, complete, finish, run_job
from support.least_seconds import least_seconds

_ARGS = np.dtype([(name, np.int64) for name in ("board", "out", "first", "second")])
_args_at = record_at(_ARGS)


def _two_phases(args: int) -> None:
    """Phase 0 counts each task once; phase 1 copies what phase 0 wrote."""
    a = _args_at(args)
    out = pointer_i32(a.out)
    task = claim(a.board, 0)
    while task < a.first:
        out[task] += 1
        finish(a.board, 0)
        task = claim(a.board, 0)
    complete(a.board, 0, a.first)
    task = claim(a.board, 1)
    while task < a.second:
        out[a.first + task] = out[task % a.first] + out[a.first - 1 - task % a.first]
        finish(a.board, 1)
        task = claim(a.board, 1)
    complete(a.board, 1, a.second)
    atomic_add(a.board + 2 * COUNTER_BYTES, 1)


JOB = Job(_two_phases)


def run(team: Team | None, first: int, second: int) -> None:
    board = np.zeros(3 * COUNTER_BYTES // 8, np.int64)
    out = np.zeros(first + second, np.int32)
    args = np.zeros(1, _ARGS)
    args[0] = (board.ctypes.data, out.ctypes.data, first, second)
    run_job(JOB, args.ctypes.data, team)
    assert (out[:first] == 1).all() and (out[first:] == 2).all()
    threads = 1 if team is None else team.threads
    assert 1 <= board[2 * COUNTER_BYTES // 8] <= threads


@pytest.mark.parametrize("threads", [None, 1, 2, 4])
def test_every_task_runs_once_and_phases_are_ordered(threads: int | None) -> None:
    team = None if threads is None else Team(threads)
    for size in (1, 2, 7, 300):
        for _ in range(20):
            run(team, size, 2 * size)


def test_helpers_wake_up_after_sleeping() -> None:
    team = Team(2)
    for _ in range(3):
        run(team, 50, 50)
        time.sleep(0.02)


def test_callers_from_many_threads_queue() -> None:
    team = Team(2)

    def call(_: int) -> None:
        for _ in range(50):
            run(team, 20, 20)

    with ThreadPoolExecutor(4) as callers:
        list(callers.map(call, range(4)))


def test_helpers_end_with_their_team_and_use_no_cpu_when_idle() -> None:
    before = {thread for thread in threading.enumerate() if thread.name.startswith("kernels-")}
    team = Team(3)
    run(team, 10, 10)
    time.sleep(0.05)
    assert least_seconds(lambda: time.sleep(0.1), 0.05, time.process_time) < 0.05
    helpers = {thread for thread in threading.enumerate() if thread.name.startswith("kernels-")} - before
    assert len(helpers) == 2
    del team
    gc.collect()
    for helper in helpers:
        helper.join(5)
        assert not helper.is_alive()


def test_a_team_has_a_thread() -> None:
    with pytest.raises(ValueError, match="threads is 0"):
        Team(0)
