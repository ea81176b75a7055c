"""Compiled code that steps on a GPU call on the host, made ready on a thread of its own while the model is loaded.

To compile it takes the interpreter for ten seconds, which threads of the start would wait for: where the disk does not
have it, a process of its own compiles it first.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading

import numpy as np

from slipstream.packages import child_environment
from slipstream.process_limits import end_with
from slipstream_kernels.jit.compile_turns import NotOnDiskError, reading_only

_log = logging.getLogger(__name__)

LONGEST_SECONDS = 120.0
"""How long another process may compile it: then it is compiled here."""
_COMMAND = (sys.executable, "-m", "verify_service.server.host_kernels")


def begin_compiling() -> threading.Thread:
    """Compile that code, or read it from the disk, beside the caller: whoever calls it first waits for its part alone.

    A step that finds it missing would compile it itself, as it does what fails here.
    """
    thread = threading.Thread(target=_compile, name="host-kernels", daemon=True)
    thread.start()
    return thread


def compile_all() -> None:
    """Call each function once, for nothing: first those that the start needs first."""
    from slipstream_kernels.draft_protocol.tree_wire import TreeReader
    from slipstream_kernels.models.gpu.batch.buckets import Bucket
    from slipstream_kernels.models.gpu.batch.device_plan import PlanLayout
    from slipstream_kernels.models.gpu.batch.limits import GpuLimits
    from slipstream_kernels.models.gpu.batch.pass_plan import PassPlan
    from slipstream_kernels.models.gpu.batch.plan_kernels import committed_rows
    from verify_service.hidden_states.store import HiddenStateStore
    from verify_service.kv_cache.page_table import PageTable
    from verify_service.model_runner.gpu_batch import GpuBatchBuilder
    from verify_service.speculation.acceptance_model import AcceptanceModel

    limits = GpuLimits(max_running=1, max_nodes=2, step_nodes=1, prefill_chunk=1, page_size=1, num_pages=1)
    layout = PlanLayout(Bucket(2, 2, True, True), limits, columns=1, tile_rows=1, group=1, kv_heads=1)
    words = np.zeros(layout.max_words, np.int32)
    layout.pack(PassPlan.empty(), np.zeros((0, 2), np.int32), words)
    if layout.choices is not None:
        layout.choices.pack(PassPlan.empty(), words)
    rows = GpuBatchBuilder(PageTable(1, 1), 1, 1)
    plan, _ = rows.build([])
    assert plan.in_order
    committed_rows(rows.planned_rows([]), np.empty((0, 4), np.int64))
    AcceptanceModel()
    HiddenStateStore(num_pages=1, page_size=1, hidden_size=1, limit=0)
    TreeReader()


def _compile() -> None:
    try:
        if not _read():
            _compile_elsewhere()
            compile_all()
    except Exception:  # noqa: BLE001 - who needs it compiles it
        _log.exception("host kernels are not compiled ahead")


def _read() -> bool:
    """Whether the disk has all of it, which is ready then; so it is where no folder takes compiled code."""
    try:
        with reading_only():
            compile_all()
    except NotOnDiskError:
        return False
    return True


def _compile_elsewhere() -> None:
    """Have a process of its own put all of it on the disk."""
    command = (*_COMMAND, str(os.getpid()))
    environment = os.environ | child_environment() | {"CUDA_VISIBLE_DEVICES": ""}
    try:
        subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=LONGEST_SECONDS,
            env=environment,
            start_new_session=True,  # a terminal's Ctrl-C is for this process
            check=True,
        )
    except subprocess.CalledProcessError as error:
        _log.info("host kernels are compiled in this process: %s", error.stderr.decode(errors="replace")[-500:])
    except (OSError, subprocess.TimeoutExpired) as error:
        _log.info("host kernels are compiled in this process: %s", error)


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    compile_all()
