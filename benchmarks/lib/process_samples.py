"""What each process of a server holds: memory, descriptors, threads, and memory of a GPU."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

SMI_SECONDS = 20.0
FLAT_BYTES = 32 << 20
"""What the verify service's resident memory may grow by: allocators keep what they once had."""
FLAT_DESCRIPTORS = 4
"""Connections of clients come and go."""


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """One process at some time.perf_counter(): bytes, numbers, and processor seconds that it has used since its start.

    `pss` is the proportional share of resident memory, which counts a page shared by n processes as 1/n; None where
    it was not asked for or may not be read.
    """

    at: float
    pid: int
    rss: int
    pss: int | None
    descriptors: int
    threads: int
    cpu_seconds: float


def sample_process(pid: int, *, proportional: bool = False) -> ProcessSample | None:
    """A look at a process; None if it has ended. `proportional`: with PSS, which takes the kernel milliseconds."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times = process.cpu_times()
            rss, descriptors, threads = process.memory_info().rss, process.num_fds(), process.num_threads()
        pss = _proportional(process) if proportional else None
    except psutil.Error:
        return None
    return ProcessSample(time.perf_counter(), pid, rss, pss, descriptors, threads, times.user + times.system)


def sample_processes(pids: Mapping[str, int], *, proportional: bool = False) -> dict[str, ProcessSample]:
    """A look at each of them that still runs, by name."""
    looks = {name: sample_process(pid, proportional=proportional) for name, pid in pids.items()}
    return {name: look for name, look in looks.items() if look is not None}


def _proportional(process: psutil.Process) -> int | None:
    try:
        return int(process.memory_full_info().pss)
    except (psutil.AccessDenied, AttributeError):
        return None


def device_bytes() -> int:
    """Memory in use on the GPUs that are visible here, by all processes together; 0 where there is none."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    which = ("--id", visible) if visible else ()
    command = ("nvidia-smi", *which, "--query-gpu=memory.used", "--format=csv,noheader,nounits")
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=SMI_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(int(line) for line in said.split() if line.isdigit()) << 20
