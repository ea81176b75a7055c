"""Writes states into shards as they come, so that a run that is killed goes on behind the last whole sequence."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from slipstream_kernels.models.capture_layers import Bits
from training.common.atomic_files import AppendFile, DamagedError, sync_folder
from training.features.packing import Piece
from training.features.progress import Mark, Progress, last_whole
from training.features.shards import Shard
from training.features.texts import Texts

SYNC_BYTES: Final = 64 << 20
"""So much is handed to the operating system before the disk is asked for it: it is never idle, nor far behind."""


class StateWriter:
    """Takes the states of all sequences from `next_sequence` on, in order. Used by one thread at a time."""

    def __init__(self, folder: Path, shards: list[Shard], texts: Texts, progress: Progress) -> None:
        """Go on where `progress` says. DamagedError where a whole shard is not there any more."""
        self._folder = folder
        self._shards = shards
        self._texts = texts
        self._progress = progress
        self._failed = False
        for shard, mark in zip(shards, progress.done, strict=False):
            path = folder / shard.file
            if not path.is_file() or path.stat().st_size != mark.bytes:
                raise DamagedError(f"{path} is not what was written")
        self._shard = self._next_shard()

    @property
    def next_sequence(self) -> int:
        """The first whose states are still to come."""
        return len(self._texts) if self._shard is None else self._shard.shard.first + self._shard.whole

    def write(self, pieces: list[Piece], rows: Bits) -> int:
        """Append the states of pieces, one behind the other; gives their number. Does nothing once it has failed."""
        if self._failed:
            return 0
        try:
            self._write(pieces, rows)
        except BaseException:
            self._failed = True
            raise
        return len(rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shard is not None:
            self._shard.close()
        self._progress.close()

    def _next_shard(self) -> _OpenShard | None:
        done = len(self._progress.done)
        if done == len(self._shards):
            return None
        return _OpenShard(self._folder, self._shards[done], self._texts, self._progress.open)

    def _write(self, pieces: list[Piece], rows: Bits) -> None:
        end = 0
        mark: Mark | None = None
        for piece in pieces:
            assert self._shard is not None
            start, end = end, end + len(piece)
            self._shard.append(rows[start:end].data.cast("B"))
            if not piece.last:
                continue
            self._shard.whole += 1
            mark = None
            if self._shard.whole < self._shard.shard.sequences:
                mark = self._shard.mark()
            else:
                self._progress.add(self._shard.complete(self._texts))
                self._shard = self._next_shard()
        if mark is not None:
            self._progress.add(mark)


class _OpenShard:
    """A shard that is being written. `whole`: how many of its sequences are."""

    def __init__(self, folder: Path, shard: Shard, texts: Texts, marks: list[Mark]) -> None:
        """Go on at the last of `marks` that holds."""
        self.shard = shard
        path = folder / shard.file
        mark, self._digest = last_whole(path, marks)
        self.whole = mark.sequences if mark else 0
        self._file = AppendFile(path, mark.bytes if mark else 0)
        self._synced = self._file.size
        self._syncer = ThreadPoolExecutor(1)
        self._syncing: Future[None] | None = None
        if mark is None:
            self.append(shard.head(texts))

    def append(self, data: bytes | memoryview) -> None:
        """`data` are single bytes."""
        self._digest.update(data)
        self._file.append(data)
        if self._file.size - self._synced > SYNC_BYTES:
            self._await_disk()
            self._synced = self._file.size
            self._syncing = self._syncer.submit(self._file.sync)

    def mark(self) -> Mark:
        """How far it has come."""
        return Mark(self.shard.number, self.whole, self._file.size, self._digest.hexdigest())

    def complete(self, texts: Texts) -> Mark:
        """Have all of it on disk, and let go."""
        self.append(self.shard.tail(texts))
        self._await_disk()
        self._file.sync()
        sync_folder(self._file.path.parent)
        self.close()
        return Mark(self.shard.number, self.whole, self._file.size, self._digest.hexdigest(), done=True)

    def close(self) -> None:
        self._syncer.shutdown()
        self._file.close()

    def _await_disk(self) -> None:
        """Until what it was asked for is done: it may lag behind by twice as much at most."""
        if self._syncing is not None:
            self._syncing.result()
            self._syncing = None
