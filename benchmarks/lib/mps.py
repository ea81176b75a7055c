"""NVIDIA's Multi-Process Service for the length of a benchmark, with folders of its own."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from slipstream_kernels.ipc.cuda_driver import gpu_uuids

CONTROL = "nvidia-cuda-mps-control"
CALL_SECONDS = 20.0
VISIBLE = "CUDA_VISIBLE_DEVICES"


@contextmanager
def mps_server(seen: Callable[[], Sequence[str]] = gpu_uuids) -> Iterator[dict[str, str]]:
    """Start the control daemon; yields the environment in which processes become its clients, and ends it afterwards.

    Daemon and clients see the GPUs that this process sees, whose UUIDs `seen` tells. Nothing of the machine's own
    daemon, if there is one, is touched. FileNotFoundError where MPS is not installed, CalledProcessError where the
    daemon does not start.
    """
    with tempfile.TemporaryDirectory(prefix="mps-") as folder:
        pipe, log = Path(folder, "pipe"), Path(folder, "log")
        pipe.mkdir()
        log.mkdir()
        folders = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(log)}
        environment = {**folders, **_visible(seen)}
        own = {**os.environ, **environment}
        subprocess.run((CONTROL, "-d"), env=own, check=True, timeout=CALL_SECONDS)
        try:
            yield environment
        finally:
            subprocess.run((CONTROL,), input="quit\n", text=True, env=own, check=False, timeout=CALL_SECONDS)


def _visible(seen: Callable[[], Sequence[str]]) -> dict[str, str]:
    """GPUs that are chosen by number, by their UUIDs; empty where they are not.

    A daemon numbers those that it was given from 0 on, so that a number means another GPU to its clients, or none.
    """
    chosen = os.environ.get(VISIBLE, "")
    by_number = any(each.strip().isdigit() for each in chosen.split(","))
    uuids = seen() if by_number else ()
    return {VISIBLE: ",".join(uuids)} if uuids else {}
