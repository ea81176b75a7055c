"""Runs of features that kill themselves at an exact instruction, one after the other in the same folder.

    python -m support.killed_features ANSWERS MODEL FOLDER OPERATION:NUMBER...

Each run is a process of its own that gets SIGKILL as it is about to do its NUMBER-th OPERATION, a function of `os`; of
a write it does the first half. Exit status 0 if each of them died of that.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from training.features.run import extract_features, plan_features
from training.features.settings import FeatureSettings, Machine

SHARD_BYTES = 64 << 10
SETTINGS = FeatureSettings((1, 3))


def run(answers: Path, model: Path, folder: Path, rows: int = 40) -> None:
    """A whole run in this process."""
    plan = plan_features([answers], model, SETTINGS, shard_bytes=SHARD_BYTES)
    extract_features(plan, folder, Machine(threads=1, rows=rows), progress=False)


def deadly(operation: str, number: int) -> Callable[..., Any]:
    """Stands for a function of `os`, and ends this process at its `number`-th call."""
    real = getattr(os, operation)
    lock, calls = threading.Lock(), [0]

    def call(*args: Any, **options: Any) -> Any:
        with lock:
            calls[0] += 1
            if calls[0] == number:
                if operation == "write":
                    real(args[0], bytes(args[1])[: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)

    return call


def main() -> int:
    answers, model, folder, *points = sys.argv[1:]
    torch.set_num_threads(1)  # no thread may be there when processes fork
    run(Path(answers), Path(model), Path(f"{folder}-before"))  # loads what all of them need
    for point in points:
        operation, number = point.split(":")
        child = os.fork()
        if child == 0:
            setattr(os, operation, deadly(operation, int(number)))
            run(Path(answers), Path(model), Path(folder))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            print(f"the run did not come to {point}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
