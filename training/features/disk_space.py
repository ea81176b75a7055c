"""What features take on a disk, known to the byte before the first of them is computed."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from training.features.shards import Shard
from training.features.texts import Texts


class NoRoomError(ValueError):
    """A disk has less room than features take; the message has the figures."""


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes: `needed` by all shards, of which `present` are written already, and `free` on the disk."""

    needed: int
    present: int
    free: int
    shards: int

    @classmethod
    def of(cls, folder: Path, shards: Sequence[Shard], texts: Texts) -> Room:
        """For a folder that exists, or whose parent does."""
        paths = [folder / shard.file for shard in shards]
        present = sum(path.stat().st_blocks * 512 for path in paths if path.exists())
        disk = next(place for place in (folder, *folder.resolve().parents) if place.exists())
        return cls(sum(shard.size(texts) for shard in shards), present, shutil.disk_usage(disk).free, len(shards))

    @property
    def suffices(self) -> bool:
        return self.needed <= self.present + self.free

    def check(self) -> None:
        """Raise NoRoomError unless all of it fits."""
        if not self.suffices:
            raise NoRoomError(f"not enough disk: {self}; name fewer boundaries, fewer answers, or train online")

    def __str__(self) -> str:
        missing = max(0, self.needed - self.present)
        return (
            f"{size_text(self.needed)} in {self.shards} shards, {size_text(missing)} of them to be written, "
            f"{size_text(self.free)} free"
        )


def size_text(count: int) -> str:
    """With a unit that suits it."""
    size, unit = float(count), 0
    while size >= 1024 and unit < 4:
        size, unit = size / 1024, unit + 1
    return f"{count} B" if unit == 0 else f"{size:.1f} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[unit]}"
