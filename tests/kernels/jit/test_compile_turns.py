"""Real processes that want the same kernel at the same time."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from slipstream_kernels.jit.compile_turns import CompileTurns, NotOnDiskError, reading_only

COMPILE = """
from slipstream_kernels.jit.compiler import Job, kernel

@kernel
def add(a, b):
    return a + b

@kernel
def twice(a):
    return add(a, a)

assert twice(21) == 42
assert Job(lambda args: None).address
print(sum(sum(each.stats.cache_misses.values()) for each in (add, twice)))
"""


def test_each_kernel_is_compiled_once_and_the_others_read_it(tmp_path):
    script = tmp_path / "compile.py"
    script.write_text(COMPILE)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    processes = [
        subprocess.Popen([sys.executable, str(script)], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    compiled = [int(process.communicate(timeout=120)[0]) for process in processes]
    assert sum(compiled) == 2
    assert len(list(tmp_path.rglob("*.nbc"))) == 3


class Cache:
    """A cache of numba's, on no disk."""

    def __init__(self, path: Path) -> None:
        self.cache_path, self._impl = str(path), SimpleNamespace(filename_base="kernel")
        self.kept: dict[object, object] = {}

    def load_overload(self, signature, context):
        return self.kept.get(signature)

    def save_overload(self, signature, result):
        self.kept[signature] = result


def test_one_that_is_stopped_is_not_waited_for_without_end(tmp_path):
    cache = Cache(tmp_path)
    CompileTurns(cache, longest_wait=0.1)
    with (tmp_path / "kernel.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        begun = time.monotonic()
        assert cache.load_overload("int64", None) is None
        assert 0.1 <= time.monotonic() - begun < 30
        cache.save_overload("int64", 1)
    assert cache.load_overload("int64", None) == 1


def test_the_lock_is_held_until_the_last_overload_is_saved(tmp_path):
    first = Cache(tmp_path)
    CompileTurns(first)
    for signature in ("float32", "int64"):
        assert first.load_overload(signature, None) is None
    lock = (tmp_path / "kernel.lock").open("w")
    for signature in ("int64", "float32"):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        except BlockingIOError:
            free = False
        assert not free
        first.save_overload(signature, 1)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    lock.close()


def test_a_folder_that_takes_no_lock_costs_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    cache = Cache(tmp_path / "file" / "folder")
    CompileTurns(cache)
    assert cache.load_overload("int64", None) is None
    cache.save_overload("int64", 1)
    assert cache.load_overload("int64", None) == 1


def test_what_is_only_read_is_not_compiled_and_keeps_nobody_waiting(tmp_path):
    cache = Cache(tmp_path)
    CompileTurns(cache)
    with reading_only():
        with pytest.raises(NotOnDiskError):
            cache.load_overload("int64", None)
        cache.kept["float32"] = 2
        assert cache.load_overload("float32", None) == 2
        other = threading.Thread(target=lambda: cache.kept.update(found=cache.load_overload("int64", None)))
        other.start()
        other.join()
        assert cache.kept["found"] is None
        cache.save_overload("int64", 1)
        assert cache.load_overload("int64", None) == 1
    with (tmp_path / "kernel.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert cache.load_overload("uint8", None) is None
    cache.save_overload("uint8", 1)


ONLY_READ = """
from slipstream_kernels.jit.compile_turns import NotOnDiskError, reading_only
from slipstream_kernels.jit.compiler import kernel

@kernel
def add(a, b):
    return a + b

def called(a):
    try:
        return add(a, a)
    except NotOnDiskError:
        return "not on the disk"

with reading_only():
    print(called(1))
print(called(2))
with reading_only():
    print(called(3))
"""


def test_a_function_is_compiled_after_it_was_not_on_the_disk(tmp_path):
    script = tmp_path / "only_read.py"
    script.write_text(ONLY_READ)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    for first in ("not on the disk", "2"):
        command = [sys.executable, str(script)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines() == [first, "4", "6"], done.stderr
