"""Files that survive a kill at any instruction."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_BLOCK = 1 << 20


class AppendFile:
    """A file that only grows. `size` counts the bytes given to it; what lies beyond at opening is cut off."""

    __slots__ = ("_descriptor", "path", "size")

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self.size = size
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        found = os.fstat(self._descriptor).st_size
        if found < size:
            os.close(self._descriptor)
            raise DamagedError(f"{path} has {found} bytes where {size} were written")
        os.ftruncate(self._descriptor, size)
        os.lseek(self._descriptor, size, os.SEEK_SET)

    def append(self, data: bytes | memoryview) -> None:
        """Hand the bytes to the operating system, which keeps them if this process dies."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]
        self.size += len(data)

    def sync(self) -> None:
        """Have the bytes survive a loss of power too."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class MismatchError(ValueError):
    """A folder belongs to another run."""


class DamagedError(RuntimeError):
    """A file is shorter than, or different from, what was written to it."""


def write_whole(path: Path, data: bytes) -> None:
    """Have `path` hold `data`, or what it held before, and nothing in between."""
    part = path.with_name(f"{path.name}.part")
    with AppendFile(part, 0) as file:
        file.append(data)
        file.sync()
    part.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Have names made or changed in `folder` survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def json_lines(path: Path) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Start, end and content of each whole line; what was cut at the end of the file is left out.

    No file has no lines. DamagedError for a line before the last that is no JSON.
    """
    if not path.exists():
        return
    size = path.stat().st_size
    with path.open("rb") as stream:
        end = 0
        while line := stream.readline():
            start, end = end, end + len(line)
            try:
                record = json.loads(line) if line.endswith(b"\n") else None
            except ValueError:
                record = None
            if record is None and end < size:
                raise DamagedError(f"{path}: the line at byte {start} is damaged")
            if record is not None:
                yield start, end, record


def check_task(path: Path, begun: dict[str, Any], task: dict[str, Any]) -> None:
    """Raise MismatchError unless the run that `path` tells of was begun for this task."""
    different = sorted(name for name in task if begun.get(name) != task[name])
    if different:
        raise MismatchError(f"{path.parent} holds a run with another {', '.join(different)}")


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as stream:
        digest = hashlib.sha256()
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def described(path: Path) -> dict[str, Any]:
    """What tells an input of a run from another: name, size and hash."""
    return {"name": path.name, "bytes": path.stat().st_size, "sha256": sha256_of(path)}


@contextmanager
def sole_user(folder: Path) -> Iterator[None]:
    """Keep other processes that ask for the same out of `folder`; MismatchError where one is in it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise MismatchError(f"{folder} is in use by another run") from error
        yield
    finally:
        os.close(descriptor)
