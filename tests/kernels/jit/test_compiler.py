from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from slipstream_kernels.jit import compiler

PRINT_FOLDER = "from slipstream_kernels.jit.compiler import cache_folder; print(cache_folder())"


def folder_under(environment: dict[str, str]) -> Path:
    done = subprocess.run(
        [sys.executable, "-c", PRINT_FOLDER],
        env={**os.environ, **environment},
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return Path(done.stdout.strip())


def test_numba_cache_dir_is_respected(tmp_path: Path) -> None:
    assert folder_under({"NUMBA_CACHE_DIR": str(tmp_path)}).parent == tmp_path


def test_an_unwritable_folder_falls_back(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    folder = folder_under({"NUMBA_CACHE_DIR": str(blocked), "XDG_CACHE_HOME": str(blocked), "HOME": str(tmp_path)})
    assert folder.parent == tmp_path / ".cache" and folder.is_dir()


def test_the_folder_is_private_and_names_the_sources(tmp_path: Path) -> None:
    folder = folder_under({"NUMBA_CACHE_DIR": str(tmp_path)})
    assert folder.stat().st_mode & 0o077 == 0
    assert folder.name == f"slipstream-kernels-{compiler._source_digest()}"


def test_compiled_code_is_cached(tmp_path: Path) -> None:
    code = (
        "import numpy as np; from slipstream_kernels.ops.rms_norm import rms_norm\n"
        "rms_norm(np.ones((1, 16), np.float32), np.ones(16, np.float32), 1e-5)"
    )
    subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}, check=True, timeout=120
    )
    assert list(tmp_path.rglob("*.nbc"))


def test_other_users_of_numba_keep_their_cache_folder() -> None:
    before = compiler.numba_config.CACHE_DIR
    with compiler._cache_location(Path("somewhere")):
        assert compiler.numba_config.CACHE_DIR == "somewhere"
    assert before == compiler.numba_config.CACHE_DIR
