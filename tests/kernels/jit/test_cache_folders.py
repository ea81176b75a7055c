"""Kernels are compiled on machines whose disks take nothing; real processes, as limits and environments are theirs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMPILE = """
import logging, resource, sys
logging.basicConfig(level="WARNING")
limit = int(sys.argv[1])
if limit >= 0:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
import numpy as np
from slipstream_kernels.jit.compiler import cache_folder
if len(sys.argv) > 2:
    cache_folder()
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
from slipstream_kernels.jit.row_copies import copy_rows
from slipstream_kernels.jit.threads import Job
out = np.zeros((2, 3), np.uint16)
copy_rows(np.arange(6, dtype=np.uint16).reshape(2, 3), np.array([1]), out, np.array([0]))
assert out.tolist() == [[3, 4, 5], [0, 0, 0]]
assert Job(lambda args: None).address
print(cache_folder())
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Numba keeps no code that lies in no file."""
    path = tmp_path_factory.mktemp("script") / "compile.py"
    path.write_text(COMPILE)
    return path


def compile_with(script: Path, *limits: int, **environment: str) -> tuple[str, list[str]]:
    """The cache folder, and the lines of the log; limits of a file's bytes, from the start and from the choice on."""
    nowhere = dict.fromkeys(("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"), "")
    done = subprocess.run(
        [sys.executable, str(script), *map(str, limits)],
        env={**os.environ, **nowhere, **environment},
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.stdout.strip(), done.stderr.splitlines()


def test_a_home_that_is_none_is_passed_over(script: Path, tmp_path: Path) -> None:
    folder, lines = compile_with(script, -1, HOME="/dev/null/home", TMPDIR=str(tmp_path))
    assert folder.startswith(str(tmp_path)) and not lines
    assert list(tmp_path.rglob("*.nbc"))


def test_on_a_full_disk_kernels_are_compiled_in_memory_with_one_warning(script: Path, tmp_path: Path) -> None:
    folder, lines = compile_with(script, 0, HOME=str(tmp_path), TMPDIR=str(tmp_path))
    assert folder == "None"
    (line,) = lines
    assert "kept in memory only" in line and "NUMBA_CACHE_DIR" in line


@pytest.mark.parametrize("limit", [0, 200])
def test_a_disk_that_fills_up_costs_one_warning(limit: int, script: Path, tmp_path: Path) -> None:
    """In front of an index, and in the middle of one."""
    folder, lines = compile_with(script, -1, limit, NUMBA_CACHE_DIR=str(tmp_path))
    assert folder.startswith(str(tmp_path))
    (line,) = lines
    assert "kept in memory only" in line and "File too large" in line
    assert not list(tmp_path.rglob("*.nbc"))


def test_damaged_files_are_compiled_again(script: Path, tmp_path: Path) -> None:
    compile_with(script, -1, NUMBA_CACHE_DIR=str(tmp_path))
    files = [*tmp_path.rglob("*.nbi"), *tmp_path.rglob("*.nbc")]
    assert files
    for index, file in enumerate(files):
        file.write_bytes(file.read_bytes()[:10] if index % 2 else b"")
    _, lines = compile_with(script, -1, NUMBA_CACHE_DIR=str(tmp_path))
    assert lines and all("kept in memory only" in line for line in lines)


def test_triton_gets_a_folder_that_takes_its_kernels(tmp_path: Path) -> None:
    code = "from slipstream_kernels.ops.gpu import launch; import triton; print(triton.knobs.cache.dir)"
    for home, named in (("/dev/null/home", ""), (str(tmp_path), "/dev/null/triton")):
        environment = {"HOME": home, "TMPDIR": str(tmp_path), "TRITON_INTERPRET": "0", "XDG_CACHE_HOME": ""}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **environment, **({"TRITON_CACHE_DIR": named} if named else {})},
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.stdout.strip().startswith(str(tmp_path))
        assert "Triton's own folder takes no kernels" in done.stderr
