"""Shared memory without a name: sized for good, gone with its users."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slipstream_kernels.ipc.segment import Segment, SegmentError


def open_files() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def test_both_ends_see_what_either_writes() -> None:
    ours = Segment.create(8192)
    theirs = Segment.open(ours.path, 8192)
    ours.memory[100:104] = b"abcd"
    theirs.memory[8191:] = b"z"
    assert theirs.memory[100:104] == b"abcd"
    assert ours.memory[8191:] == b"z"


def test_the_size_is_sealed() -> None:
    ours = Segment.create(8192)
    descriptor = os.open(ours.path, os.O_RDWR)
    try:
        for size in (0, 4096, 16384):
            with pytest.raises(PermissionError):
                os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)


def test_what_is_hidden_or_of_another_size_cannot_be_opened() -> None:
    ours = Segment.create(8192)
    path = ours.path
    with pytest.raises(SegmentError):
        Segment.open(path, 4096)
    ours.hide()
    ours.hide()
    with pytest.raises(SegmentError):
        Segment.open(path, 8192)
    assert len(ours.memory) == 8192


def test_what_is_hidden_is_behind_no_descriptor() -> None:
    ours = Segment.create(8192)
    inode = Path(ours.path).stat().st_ino
    ours.hide()
    descriptors = [link.stat().st_ino for link in Path("/proc/self/fd").iterdir() if link.exists()]
    assert inode not in descriptors


def test_memory_is_mapped_as_long_as_a_view_of_it_is_left() -> None:
    ours = Segment.create(8192)
    mapping = f" {Path(ours.path).stat().st_ino} */memfd:slipstream"
    view = ours.memory[4096:]
    del ours
    view[0] = 7
    assert view[0] == 7
    assert re.search(mapping, Path("/proc/self/maps").read_text())
    del view
    assert not re.search(mapping, Path("/proc/self/maps").read_text())


@pytest.mark.parametrize("path", ["", "/", "/dev/null", "/dev/shm/none", "/proc/1/fd/0", "/proc/self/fd/0", "a\0b"])
def test_what_is_no_such_memory_is_refused(path: str) -> None:
    with pytest.raises(SegmentError):
        Segment.open(path, 8192)


def test_a_pipe_is_refused_without_waiting_for_its_writer(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SegmentError):
        Segment.open(str(tmp_path / "pipe"), 8192)


@pytest.mark.parametrize("size", [0, -4096])
def test_a_size_that_cannot_be_is_refused_and_nothing_stays_open(size: int) -> None:
    before = open_files()
    with pytest.raises(SegmentError):
        Segment.create(size)
    assert open_files() == before


def test_nothing_stays_open() -> None:
    before = open_files()
    for _ in range(20):
        ours = Segment.create(4096)
        theirs = Segment.open(ours.path, 4096)
        del ours, theirs
    assert open_files() == before


def test_memory_outlives_a_creator_that_is_killed_and_leaves_no_name() -> None:
    code = (
        "import sys, time; from slipstream_kernels.ipc.segment import Segment; ours = Segment.create(4096);"
        "ours.memory[:2] = b'ok'; print(ours.path, flush=True); time.sleep(60)"
    )
    names = set(Path("/dev/shm").iterdir())
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=_environment())
    assert child.stdout is not None
    path = child.stdout.readline().strip()
    theirs = Segment.open(path, 4096)
    assert set(Path("/dev/shm").iterdir()) <= names
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert theirs.memory[:2] == b"ok"
    with pytest.raises(SegmentError):
        Segment.open(path, 4096)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
