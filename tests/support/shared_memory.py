"""What a process holds of the exchange's shared memory."""

from __future__ import annotations

import contextlib
import gc
from pathlib import Path

NAME = "memfd:slipstream"


def rings_of(process: int | str = "self") -> int:
    """Mappings and descriptors of shared memory."""
    gc.collect()
    folder = Path(f"/proc/{process}")
    count = (folder / "maps").read_text().count(NAME)
    for link in (folder / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the listing's own descriptor
            count += NAME in str(link.readlink())
    return count


def descriptors_of(process: int | str) -> int:
    """Open file descriptors."""
    return len(list(Path(f"/proc/{process}/fd").iterdir()))
