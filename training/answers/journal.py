"""Answers in the order in which they came, each on disk before the next question of its worker is asked.

A journal is a file of JSON lines: what the run is about, then one conversation a line. A line that was cut by a kill is
cut off; conversations that failed for good stand in it too, so that they are not asked again.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Final

from training.common.atomic_files import AppendFile, check_task, json_lines

SYNC_SECONDS: Final = 5.0
"""A loss of power costs at most what came in this time; a kill costs nothing."""


class Journal:
    """What has been answered. With `retry_failed`, conversations that failed count as not asked."""

    def __init__(self, path: Path, task: dict[str, Any], *, retry_failed: bool = False) -> None:
        """MismatchError where `path` holds the journal of another task."""
        self.path = path
        self._places: dict[bytes, int] = {}
        self._synced = time.monotonic()
        self._failed: set[bytes] = set()
        size = 0
        for start, end, record in json_lines(path):
            size = end
            if start == 0:
                check_task(path, record["task"], task)
            else:
                self._count(start, record, retry_failed)
        self._file = AppendFile(path, size)
        if size == 0:
            self._file.append(_line({"task": task}))
            self._file.sync()

    def __len__(self) -> int:
        """Conversations answered, or failed for good."""
        return len(self._places)

    def keys(self) -> frozenset[bytes]:
        """The conversations' keys, 16 bytes each."""
        return frozenset(self._places)

    @property
    def failures(self) -> int:
        """Conversations that failed for good."""
        return len(self._failed)

    def __contains__(self, key: str) -> bool:
        return bytes.fromhex(key) in self._places

    def add(self, record: dict[str, Any]) -> None:
        """Keep what became of a conversation."""
        start = self._file.size
        self._file.append(_line(record))
        self._count(start, record, retry_failed=False)
        if time.monotonic() - self._synced > SYNC_SECONDS:
            self._file.sync()
            self._synced = time.monotonic()

    def read(self, key: str) -> dict[str, Any]:
        """What was kept of a conversation; KeyError if nothing was."""
        with self.path.open("rb") as stream:
            stream.seek(self._places[bytes.fromhex(key)])
            record: dict[str, Any] = json.loads(stream.readline())
            return record

    def close(self) -> None:
        """Have everything on disk, and let go."""
        self._file.sync()
        self._file.close()

    def _count(self, start: int, record: dict[str, Any], retry_failed: bool) -> None:
        if record["failure"] and retry_failed:
            return
        key = bytes.fromhex(record["id"])
        self._places[key] = start
        self._failed.discard(key)
        if record["failure"]:
            self._failed.add(key)


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
