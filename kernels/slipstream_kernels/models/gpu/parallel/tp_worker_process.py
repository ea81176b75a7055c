"""The other ranks of a shared model as processes of this host, started by rank 0, each on its own GPU.

    python -m slipstream_kernels.models.gpu.parallel.tp_worker_process

reads a FollowerTask, one line of JSON, from standard input; RANK, WORLD_SIZE and MASTER_PORT say which rank it is and
where rank 0 waits. It ends when standard input does: with rank 0, however that died. Exit status 1 means that it could
not load its part, or lost another rank; its log says why.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import torch

from slipstream_kernels.models.checkpoint.model_config import CheckpointError
from slipstream_kernels.models.checkpoint.served_config import served_config
from slipstream_kernels.models.gpu.batch.limits import GpuLimits
from slipstream_kernels.models.gpu.gpu_model import GpuModel
from slipstream_kernels.models.gpu.parallel.tp_driver import TpDriverModel
from slipstream_kernels.models.gpu.parallel.tp_follower import follow
from slipstream_kernels.models.gpu.ranks.rank_group import (
    DistributedRankGroup,
    RankGroup,
    join_rendezvous,
    open_rendezvous,
)
from slipstream_kernels.models.gpu.ranks.shard import Shard
from slipstream_kernels.models.kv_form import KVForm
from slipstream_kernels.models.rank_error import RankError

_Model = TypeVar("_Model", bound=TpDriverModel)

_MODULE = "slipstream_kernels.models.gpu.parallel.tp_worker_process"
_log = logging.getLogger(__name__)

_POLL_SECONDS = 0.5
_STALL_SECONDS = 120.0
"""How long a pass may take before a rank is thought to hang."""
_STOP_SECONDS = 30.0


@dataclasses.dataclass(frozen=True, slots=True)
class TpWorkerTask:
    """What every rank loads. `device` is rank 0's: cpu, or the first of as many GPUs as there are ranks.

    `options` are for a program other than this one that followers run, in words of its own.
    """

    folder: str
    device: str
    mode: str
    limits: GpuLimits
    log_level: int = logging.INFO
    options: str = ""

    def device_of(self, rank: int) -> torch.device:
        device = torch.device(self.device)
        return torch.device("cuda", (device.index or 0) + rank) if device.type == "cuda" else device

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> TpWorkerTask:
        entries = json.loads(text)
        limits = entries["limits"]
        form = KVForm(limits["kv"]["fp8"], tuple((key, value) for key, value in limits["kv"]["scales"]))
        tuples = {"kv": form, "expected_boundaries": tuple(limits["expected_boundaries"])}
        return cls(**entries | {"limits": GpuLimits(**limits | tuples)})


class TpWorkerProcesses:
    """Ranks 1 and up of `size`. Where one ends unasked, `on_loss` is told what happened, from another thread."""

    def __init__(
        self, task: TpWorkerTask, size: int, port: int, on_loss: Callable[[str], None], module: str = _MODULE
    ) -> None:
        self._on_loss = on_loss
        self._pending_seconds: Callable[[], float] = lambda: 0.0
        self._longest = 0.0
        self._stopping = threading.Event()
        self._processes = {rank: _start(module, task, rank, size, port) for rank in range(1, size)}
        self._watcher = threading.Thread(target=self._watch, name="followers", daemon=True)
        self._watcher.start()

    @property
    def pids(self) -> list[int]:
        """Process ids, of rank 1 first."""
        return [process.pid for process in self._processes.values()]

    def watch_progress(self, pending_seconds: Callable[[], float], longest: float) -> None:
        """From now on, also tell `on_loss` when a pass has been under way for more than `longest` seconds."""
        self._longest, self._pending_seconds = longest, pending_seconds

    def stop(self) -> None:
        """Wait for followers that were told to end, and end those that do not."""
        self._stopping.set()
        self._watcher.join()
        deadline = time.monotonic() + _STOP_SECONDS
        for process in self._processes.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.close_leashes()

    def close_leashes(self) -> None:
        """Close what the followers hang on, as rank 0's end does: they end too."""
        for process in self._processes.values():
            assert process.stdin is not None
            process.stdin.close()

    def kill(self) -> None:
        """End the followers at once."""
        for process in self._processes.values():
            process.kill()
        self.stop()

    def _watch(self) -> None:
        while not self._stopping.wait(_POLL_SECONDS):
            for rank, process in self._processes.items():
                status = process.poll()
                if status is not None:
                    self._on_loss(f"rank {rank} of the model has ended with status {status}")
                    return
            if self._pending_seconds() > self._longest:
                self._on_loss(f"a pass has not ended after {self._longest:g} seconds: a rank of the model hangs")
                return


def end_process(reason: str) -> None:
    """End this process: without all ranks its passes never end, nor can it be told why from within one."""
    _log.critical("%s; rank 0 ends with it", reason)
    logging.shutdown()
    os._exit(1)


def load_shared(
    folder: Path,
    limits: GpuLimits,
    *,
    device: str,
    mode: str,
    size: int,
    progress: bool = True,
    on_loss: Callable[[str], None] = end_process,
) -> tuple[TpDriverModel, TpWorkerProcesses]:
    """Start ranks 1 and up of `size`, and load rank 0's part of the model here; else as `GpuModel.load`.

    Raises RankError where a rank does not come, and what `GpuModel.load` raises: CheckpointError before any rank is
    started where the model does not divide. `on_loss` is called when one ends later.
    """
    Shard(served_config(folder, fp8_activations=limits.fp8_activations), 0, size)
    task = TpWorkerTask(str(folder.resolve()), device, mode, limits, logging.getLogger().getEffectiveLevel())

    def lead(own: torch.device, group: RankGroup) -> TpDriverModel:
        return TpDriverModel.load(folder, limits, device=str(own), mode=mode, group=group, progress=progress)

    return start_ranks(task, size, lead, on_loss=on_loss)


def start_ranks(
    task: TpWorkerTask,
    size: int,
    lead: Callable[[torch.device, RankGroup], _Model],
    *,
    module: str = _MODULE,
    on_loss: Callable[[str], None] = end_process,
) -> tuple[_Model, TpWorkerProcesses]:
    """Start `module` as ranks 1 and up, and make rank 0's part by `lead`; returns when every rank is ready.

    `module` calls `run_follower`. Raises RankError where a rank does not come, and what `lead` raises; then all have
    ended.
    """
    # Ranks of one host have nothing to say beyond it.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    own = task.device_of(0)
    store = open_rendezvous(size)
    with ExitStack() as undo:
        followers = TpWorkerProcesses(task, size, store.port, on_loss, module)
        undo.callback(followers.kill)
        group = DistributedRankGroup(own, store, rank=0, size=size)
        undo.callback(group.close)
        model = lead(own, group)
        group.wait_for_all()
        undo.pop_all()
    followers.watch_progress(model.pending_seconds, _STALL_SECONDS)
    return model, followers


def _start(module: str, task: TpWorkerTask, rank: int, size: int, port: int) -> subprocess.Popen[bytes]:
    place = {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", module],  # the path below is the whole of it
        env=os.environ | place | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.PIPE,
        start_new_session=True,  # a terminal's Ctrl-C is for rank 0, which may finish its requests first
    )
    assert process.stdin is not None
    process.stdin.write(task.to_json().encode() + b"\n")
    process.stdin.flush()
    return process


def _end_with_rank_0() -> None:
    sys.stdin.buffer.read()
    _log.info("rank 0 has ended")
    logging.shutdown()
    os._exit(0)


def run_worker(serve: Callable[[TpWorkerTask, torch.device, RankGroup], None]) -> None:
    """A follower, from its task to its end, which ends the process.

    `serve` makes this rank's part of the model, joins `wait_for_all`, and returns when rank 0 has stopped it.
    """
    for number in (signal.SIGINT, signal.SIGTERM):  # what ends a whole group of processes leaves the order to rank 0
        signal.signal(number, signal.SIG_IGN)
    rank, size, port = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    task = TpWorkerTask.from_json(sys.stdin.buffer.readline().decode())
    logging.basicConfig(level=task.log_level, format=f"%(asctime)s %(levelname)s rank {rank}: %(message)s")
    threading.Thread(target=_end_with_rank_0, name="leash", daemon=True).start()
    device = task.device_of(rank)
    try:
        if device.type == "cuda":
            torch.cuda.set_device(device)
        group = DistributedRankGroup(device, join_rendezvous(port, size), rank=rank, size=size)
        serve(task, device, group)
        group.close()
    except (CheckpointError, RankError, OSError, ValueError) as error:
        _log.error("%s", error)
        logging.shutdown()
        os._exit(1)
    os._exit(0)


def _serve(task: TpWorkerTask, device: torch.device, group: RankGroup) -> None:
    folder = Path(task.folder)
    model = GpuModel.load(folder, task.limits, device=str(device), mode=task.mode, group=group, progress=False)
    group.wait_for_all()
    follow(model, group)
    model.wait()


if __name__ == "__main__":
    run_worker(_serve)
