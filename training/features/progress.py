"""How far a run of features has come: a file of JSON lines that tells what is written, and what it is.

A mark is set after the states before it have been handed to the operating system, and has their hash: whatever was
lost since, by a kill or with the power, shows when the run goes on.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from training.common.atomic_files import AppendFile, check_task, json_lines

_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Mark:
    """The first `bytes` bytes of a shard have this SHA-256 and hold the states of its first `sequences` sequences.

    `done`: that is all of the file, and it survives a loss of power.
    """

    shard: int
    sequences: int
    bytes: int
    sha256: str
    done: bool = False


class Progress:
    """The marks of a run. `done` are those of whole shards in order, `open` those of the one behind them."""

    def __init__(self, path: Path, task: dict[str, Any]) -> None:
        """MismatchError where `path` tells of another task."""
        self.path = path
        self.done: list[Mark] = []
        self.open: list[Mark] = []
        size = 0
        for start, end, record in json_lines(path):
            size = end
            if start == 0:
                check_task(path, record["task"], task)
            else:
                self._take(Mark(**record))
        self._file = AppendFile(path, size)
        if size == 0:
            self._append({"task": task})
            self._file.sync()

    def add(self, mark: Mark) -> None:
        """Keep a mark; one of a whole shard is on disk before this returns."""
        self._append(asdict(mark))
        self._take(mark)
        if mark.done:
            self._file.sync()

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _append(self, record: dict[str, Any]) -> None:
        self._file.append(json.dumps(record).encode() + b"\n")

    def _take(self, mark: Mark) -> None:
        if mark.done:
            self.done.append(mark)
            self.open = []
        else:
            self.open.append(mark)


def last_whole(path: Path, marks: list[Mark]) -> tuple[Mark | None, Any]:
    """The last of `marks` up to which `path` holds what was written, and the running SHA-256 there."""
    digest = hashlib.sha256()
    found: Mark | None = None
    if not path.exists():
        return found, digest
    with path.open("rb") as stream:
        for mark in sorted(marks, key=lambda mark: mark.bytes):  # where states were lost, marks are set anew
            ahead = digest.copy()
            left = mark.bytes - (found.bytes if found else 0)
            while left and (block := stream.read(min(left, _BLOCK))):
                ahead.update(block)
                left -= len(block)
            if left or ahead.hexdigest() != mark.sha256:
                break
            found, digest = mark, ahead
    return found, digest
