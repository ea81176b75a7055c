"""NVIDIA's Multi-Process Service for the length of a benchmark, with folders of its own."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
CALL_SECONDS = 20.0


@contextmanager
def mps_server() -> Iterator[dict[str, str]]:
    """Start the control daemon; yields the environment in which processes become its clients, and ends it afterwards.

    Nothing of the machine's own daemon, if there is one, is touched. FileNotFoundError where MPS is not installed,
    CalledProcessError where the daemon does not start.
    """
    with tempfile.TemporaryDirectory(prefix="mps-") as folder:
        pipe, log = Path(folder, "pipe"), Path(folder, "log")
        pipe.mkdir()
        log.mkdir()
        environment = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(log)}
        own = {**os.environ, **environment}
        subprocess.run((CONTROL, "-d"), env=own, check=True, timeout=CALL_SECONDS)
        try:
            yield environment
        finally:
            subprocess.run((CONTROL,), input="quit\n", text=True, env=own, check=False, timeout=CALL_SECONDS)
