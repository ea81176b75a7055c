"""The output folder of a run, complete or under way.

While a run is under way its outputs are *.part files, and state.sqlite says how many of their bytes count, how far the
inputs are read, and what has been seen. One transaction moves all of that on, after the bytes are on disk; so a run
that is killed anywhere goes on from its last transaction. The manifest is written last: where it is, the outputs are
whole.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from training.common.atomic_files import AppendFile, MismatchError, sha256_of, sole_user, sync_folder, write_whole
from training.prompts.counters import PromptCounts
from training.prompts.duplicates import NearDuplicates
from training.prompts.settings import PromptSettings

OUTPUTS: Final = ("train.jsonl", "heldout.jsonl", "dropped.jsonl")
MANIFEST: Final = "manifest.json"
REPORT: Final = "report.md"
_STATE: Final = "state.sqlite"
_CACHE_KIB: Final = 65_536


@dataclass(slots=True)
class Position:
    """How far the inputs are read: whole files, and lines of the next."""

    file: int = 0
    line: int = 0


class Store:
    """What is on disk. `begin` before anything else; `commit` makes all that was done since the last one count."""

    def __init__(self, folder: Path, settings: PromptSettings, task: dict[str, Any]) -> None:
        """`task`: settings and inputs in JSON; a folder under way with another is refused with MismatchError."""
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._database = _open(folder / _STATE)
        self.near = NearDuplicates(self._database, settings.similarity, settings.permutations)
        self.evaluated = NearDuplicates(self._database, settings.similarity, settings.permutations, "evaluated_")
        """Signatures of prompts that are evaluated on."""
        begun = self._load("task")
        if begun is not None and begun != task:
            different = sorted(name for name in task if begun.get(name) != task[name])
            self._refuse(f"{folder} holds a run with other {', '.join(different)}")
        if begun is None and (foreign := [name for name in OUTPUTS if (folder / name).exists()]):
            self._refuse(f"{folder} holds {', '.join(foreign)} of no run that can go on")
        self._save("task", task)
        progress = self._load("progress") or {}
        self.begins = not progress
        """Whether nothing counts that was done before."""
        self.position = Position(**progress.get("position", {}))
        self.tally = PromptCounts.from_document(progress["tally"]) if progress else PromptCounts()
        sizes: dict[str, int] = progress.get("sizes", {})
        for name in OUTPUTS:
            if (folder / name).exists():  # killed while the outputs were given their names
                (folder / name).replace(folder / f"{name}.part")
        self._files = {name: AppendFile(folder / f"{name}.part", sizes.get(name, 0)) for name in OUTPUTS}
        self._buffers: dict[str, list[bytes]] = {name: [] for name in OUTPUTS}

    def seen(self, digest: bytes) -> bool:
        """Whether a text was read before."""
        return self._database.execute("SELECT 1 FROM seen WHERE digest = ?", (digest,)).fetchone() is not None

    def see(self, digest: bytes) -> None:
        """Remember a text that was read."""
        self._database.execute("INSERT OR IGNORE INTO seen VALUES (?)", (digest,))

    def write(self, name: str, record: dict[str, Any]) -> None:
        """Add a line to an output."""
        text = json.dumps(record, ensure_ascii=False)
        self._buffers[name].append(text.encode("utf-8", "backslashreplace") + b"\n")

    def commit(self) -> None:
        """Make everything so far count."""
        for name, file in self._files.items():
            if self._buffers[name]:
                file.append(b"".join(self._buffers[name]))
                file.sync()
                self._buffers[name].clear()
        self._save("progress", {
            "position": {"file": self.position.file, "line": self.position.line},
            "tally": self.tally.document(),
            "sizes": {name: file.size for name, file in self._files.items()},
        })  # fmt: skip
        self._database.execute("COMMIT")
        self._database.execute("BEGIN IMMEDIATE")

    def finish(self, manifest: dict[str, Any], report: str) -> None:
        """Name the outputs, write the report, and the manifest with the outputs' hashes. `remove_state` is next."""
        for name, file in self._files.items():
            file.path.replace(self.folder / name)
        sync_folder(self.folder)
        outputs = {
            name: {"bytes": file.size, "sha256": sha256_of(self.folder / name)} for name, file in self._files.items()
        }
        write_whole(self.folder / REPORT, report.encode("utf-8"))
        text = json.dumps(manifest | {"outputs": outputs}, indent=1, ensure_ascii=False)
        write_whole(self.folder / MANIFEST, text.encode("utf-8", "backslashreplace") + b"\n")

    def close(self) -> None:
        """Let go of the folder; what was not committed is forgotten."""
        self._database.rollback()
        self._database.close()
        for file in self._files.values():
            file.close()

    def _refuse(self, reason: str) -> NoReturn:
        self._database.rollback()
        self._database.close()
        raise MismatchError(reason)

    def _load(self, name: str) -> Any:
        row = self._database.execute("SELECT value FROM state WHERE name = ?", (name,)).fetchone()
        return None if row is None else json.loads(row[0])

    def _save(self, name: str, value: Any) -> None:
        self._database.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (name, json.dumps(value)))


def _open(file: Path) -> sqlite3.Connection:
    """A connection in whose transaction everything is done; MismatchError if another process has one."""
    database = sqlite3.connect(file, timeout=0.5, isolation_level=None)
    try:
        database.execute("PRAGMA synchronous = FULL")
        database.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        database.execute("BEGIN IMMEDIATE")
        database.execute("CREATE TABLE IF NOT EXISTS state (name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID")
        database.execute("CREATE TABLE IF NOT EXISTS seen (digest BLOB PRIMARY KEY) WITHOUT ROWID")
    except sqlite3.OperationalError as error:
        database.close()
        raise MismatchError(f"{file.parent} is in use by another run: {error}") from error
    return database


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a run that is complete."""
    file = folder / MANIFEST
    return json.loads(file.read_bytes()) if file.is_file() else None


def remove_state(folder: Path) -> None:
    """Remove what only a run under way needs."""
    for name in (_STATE, f"{_STATE}-journal", *(f"{output}.part" for output in OUTPUTS)):
        (folder / name).unlink(missing_ok=True)


def remove_run(folder: Path) -> None:
    """Remove everything a run has written, the manifest first."""
    if folder.is_dir():
        with sole_user(folder):
            for name in (MANIFEST, REPORT, *OUTPUTS):
                (folder / name).unlink(missing_ok=True)
            remove_state(folder)
