"""A team of threads that share the phases of a job, and never wait for one that is late.

A job is a sequence of phases; a phase is a number of tasks with no order between them. Threads claim tasks from
a counter, so a helper that is asleep or descheduled costs nothing: the caller does the work itself. A phase is
over when all of its tasks are done. Who does a task never changes its result.

Helpers spin for a bounded time after a job, then sleep in a condition variable, so an idle team uses no CPU.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from slipstream_kernels.jit.compiler import Job, kernel
from slipstream_kernels.jit.intrinsics import atomic_add, atomic_load, atomic_store, call_job, pause

# Words of the control block, each on a cache line of its own.
_GENERATION, _OPEN, _ACTIVE, _SLEEPERS, _STOP, _JOB, _ARGS = (64 * line for line in range(7))
_MUTEX, _CONDITION = 64 * 7, 64 * 9
_CONTROL_BYTES = 64 * 11

_SPINS_AFTER_JOB = 2_000
_SPINS_BEFORE_YIELD = 5_000

COUNTER_BYTES = 128
"""Bytes of one phase on a job's board: the counter of claimed tasks and, a cache line later, that of finished ones."""

_mutex_init: Any = types.ExternalFunction("pthread_mutex_init", types.int32(types.int64, types.int64))
_mutex_lock: Any = types.ExternalFunction("pthread_mutex_lock", types.int32(types.int64))
_mutex_unlock: Any = types.ExternalFunction("pthread_mutex_unlock", types.int32(types.int64))
_condition_init: Any = types.ExternalFunction("pthread_cond_init", types.int32(types.int64, types.int64))
_condition_wait: Any = types.ExternalFunction("pthread_cond_wait", types.int32(types.int64, types.int64))
_condition_broadcast: Any = types.ExternalFunction("pthread_cond_broadcast", types.int32(types.int64))
_yield: Any = types.ExternalFunction("sched_yield", types.int32())


@kernel
def claim(board: int, phase: int) -> int:
    """Number of the next task of a phase that nobody has taken; may exceed the number of tasks."""
    return atomic_add(board + phase * COUNTER_BYTES, 1)


@kernel
def finish(board: int, phase: int) -> None:
    """Report one claimed task as done; its writes are visible to whoever sees the phase completed."""
    atomic_add(board + phase * COUNTER_BYTES + 64, 1)


@kernel
def complete(board: int, phase: int, tasks: int) -> None:
    """Wait until `tasks` tasks of the phase are done."""
    spins = 0
    while atomic_load(board + phase * COUNTER_BYTES + 64) < tasks:
        pause()
        spins += 1
        if spins > _SPINS_BEFORE_YIELD:
            _yield()


@kernel
def _initialise(control: int) -> None:
    _mutex_init(control + _MUTEX, 0)
    _condition_init(control + _CONDITION, 0)


@kernel
def _publish(control: int) -> None:
    """Start a new generation and wake those who sleep."""
    generation = atomic_load(control + _GENERATION) + 1
    atomic_store(control + _OPEN, generation)
    atomic_store(control + _GENERATION, generation)
    if atomic_load(control + _SLEEPERS) > 0:
        _mutex_lock(control + _MUTEX)
        _condition_broadcast(control + _CONDITION)
        _mutex_unlock(control + _MUTEX)


@kernel
def _run(control: int, job: int, args: int) -> None:
    atomic_store(control + _JOB, job)
    atomic_store(control + _ARGS, args)
    _publish(control)
    call_job(job, args)
    atomic_store(control + _OPEN, 0)
    while atomic_load(control + _ACTIVE) > 0:
        pause()


@kernel
def _run_alone(job: int, args: int) -> None:
    call_job(job, args)


@kernel
def _await_generation(control: int, seen: int) -> None:
    """Return once the generation differs from `seen`."""
    for _ in range(_SPINS_AFTER_JOB):
        if atomic_load(control + _GENERATION) != seen:
            return
        pause()
    _mutex_lock(control + _MUTEX)
    atomic_add(control + _SLEEPERS, 1)
    while atomic_load(control + _GENERATION) == seen:
        _condition_wait(control + _CONDITION, control + _MUTEX)
    atomic_add(control + _SLEEPERS, -1)
    _mutex_unlock(control + _MUTEX)


@kernel
def _help(control: int) -> None:
    """Life of a helper. It joins a job only while the job is open; `_run` waits for those that have joined."""
    seen = 0
    while atomic_load(control + _STOP) == 0:
        _await_generation(control, seen)
        seen = atomic_load(control + _GENERATION)
        atomic_add(control + _ACTIVE, 1)
        if atomic_load(control + _OPEN) == seen and atomic_load(control + _STOP) == 0:
            call_job(atomic_load(control + _JOB), atomic_load(control + _ARGS))
        atomic_add(control + _ACTIVE, -1)


@kernel
def _stop(control: int) -> None:
    atomic_store(control + _STOP, 1)
    atomic_store(control + _OPEN, 0)
    atomic_add(control + _GENERATION, 1)
    _mutex_lock(control + _MUTEX)
    _condition_broadcast(control + _CONDITION)
    _mutex_unlock(control + _MUTEX)


class Team:
    """Runs jobs on the calling thread and `threads - 1` helpers. One job at a time; callers queue."""

    __slots__ = ("__weakref__", "_address", "_lock", "threads")

    def __init__(self, threads: int) -> None:
        if threads < 1:
            raise ValueError(f"threads is {threads}, must be at least 1")
        self.threads = threads
        control = np.zeros(_CONTROL_BYTES + 64, np.uint8)
        self._address = (control.ctypes.data + 63) // 64 * 64
        self._lock = threading.Lock()
        if threads > 1:
            _initialise(self._address)
            for number in range(1, threads):
                helper = threading.Thread(
                    target=_live, args=(control, self._address), name=f"kernels-{number}", daemon=True
                )
                helper.start()
            weakref.finalize(self, _stop, self._address)

    def run(self, job: Job, args: int) -> None:
        """Call `job` with the address of its arguments on every thread of the team; return when all have left it."""
        with self._lock:
            if self.threads == 1:
                _run_alone(job.address, args)
            else:
                _run(self._address, job.address, args)


def run_job(job: Job, args: int, team: Team | None = None) -> None:
    """Run a job on a team, or on the calling thread alone."""
    if team is None:
        _run_alone(job.address, args)
    else:
        team.run(job, args)


def _live(control: npt.NDArray[np.uint8], address: int) -> None:
    """Body of a helper's thread; it keeps the control block alive."""
    _help(address)
    del control
