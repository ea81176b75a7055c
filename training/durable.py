"""Files that survive a kill at any instruction."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from types import TracebackType
from typing import Self

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

    def append(self, data: bytes) -> None:
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


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as stream:
        digest = hashlib.sha256()
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
