"""What another user or service may have put into a cache is not read; the cache of a real compilation is planted."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from slipstream_kernels.jit.cache_trust import distrusted

COMPILE = """
import logging
logging.basicConfig(level="WARNING")
import numpy as np
from slipstream_kernels.jit.compiler import cache_folder, kernel

@kernel
def double(x):
    return 2 * x

assert double(2) == 4
print(cache_folder())
"""


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    (folder / "inner").mkdir(parents=True, mode=0o700)
    (folder / "inner" / "kernel").write_bytes(b"code")
    return folder


def test_a_folder_of_ones_own_is_trusted(cache: Path) -> None:
    assert distrusted(cache) == ""
    assert distrusted(cache / "not" / "there") == ""


@pytest.mark.parametrize("path", [".", "inner", "inner/kernel", ".."])
def test_what_everybody_may_write_is_not(path: str, cache: Path) -> None:
    place = (cache / path).resolve()
    place.chmod(0o777)
    assert distrusted(cache) == f"every user may write {place}"


def test_a_sticky_parent_protects_what_is_below_it_and_not_its_own_content(cache: Path) -> None:
    cache.chmod(0o1777)
    assert distrusted(cache / "inner") == ""
    assert distrusted(cache) == f"every user may write {cache}"


def test_links_are_followed_to_the_folder_and_not_below_it(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(cache)
    assert distrusted(tmp_path / "link") == ""
    (cache / "inner" / "other").symlink_to("kernel")
    assert distrusted(cache) == f"{cache / 'inner' / 'other'} is a link"


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_files_of_others_are_not_trusted(cache: Path) -> None:
    file = cache / "inner" / "kernel"
    os.chown(file, 12345, 0)
    assert distrusted(cache) == f"{file} belongs to user 12345, this is user 0"
    os.chown(file, 0, 12345)
    file.chmod(0o664)
    assert distrusted(cache) == f"group 12345 may write {file}"


class Planted:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.mark),)


def test_a_planted_index_is_not_unpickled(tmp_path: Path) -> None:
    """The same file in a folder that nobody else may write runs, or else this would show nothing."""
    script, shared = tmp_path / "compile.py", tmp_path / "shared"
    script.write_text(COMPILE)
    shared.mkdir(mode=0o700)

    def compile_again() -> tuple[str, str]:
        environment = {"NUMBA_CACHE_DIR": str(shared), "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
        environment["XDG_CACHE_HOME"] = ""
        done = subprocess.run(
            [sys.executable, str(script)], env={**os.environ, **environment}, capture_output=True, text=True,
            timeout=120, check=False,
        )  # fmt: skip
        return done.stdout.strip(), done.stderr

    folder, _ = compile_again()
    assert folder.startswith(str(shared))
    (index,) = Path(folder).rglob("*.nbi")
    marks = [tmp_path / "trusted", tmp_path / "planted"]
    index.write_bytes(pickle.dumps(Planted(marks[0])))
    compile_again()
    index.write_bytes(pickle.dumps(Planted(marks[1])))
    shared.chmod(0o777)
    folder, log = compile_again()
    assert [mark.exists() for mark in marks] == [True, False]
    assert folder.startswith(str(tmp_path / ".cache"))
    assert f"every user may write {shared}" in log
