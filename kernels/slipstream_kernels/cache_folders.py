"""Where compiled kernels are kept, on machines whose home is missing, unwritable or full.

A folder is used only if it is ours, since what it holds will be executed, and takes as much as a kernel needs.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

_log = logging.getLogger(__name__)

_ROOM = 1 << 20
"""Bytes that a folder must take: the largest compiled kernel has some hundred thousand."""

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 (a folder of the user's own below it)


def first_usable(name: str, *configured: str) -> Path | None:
    """The folder `name` below the first place that will do; None where there is none.

    Places: the environment variables `configured`, the user's cache folder, temporary folders, shared memory.
    """
    for base in _places(configured):
        folder = base / name
        if is_usable(folder):
            return folder
    return None


def is_usable(folder: Path) -> bool:
    """Whether `folder` exists or can be made, is ours, and has room."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder.stat().st_uid == os.getuid() and _has_room(folder)
    except (OSError, ValueError):
        return False


def settle_triton_cache() -> None:
    """Have Triton keep its kernels where that is possible, if its own folder takes nothing.

    To be called before it compiles any.
    """
    named = os.environ.get("TRITON_CACHE_DIR")
    try:
        usual = Path(named) if named else Path.home() / ".triton" / "cache"
        usual.mkdir(parents=True, exist_ok=True)
        if _has_room(usual):
            return
    except (OSError, ValueError, RuntimeError):
        pass
    folder = first_usable("slipstream-triton")
    if folder is not None:
        os.environ["TRITON_CACHE_DIR"] = str(folder)
        _log.warning("Triton's own folder takes no kernels, they are kept in %s", folder)


def _has_room(folder: Path) -> bool:
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(_ROOM))
    return True


def _places(configured: tuple[str, ...]) -> Iterator[Path]:
    yield from (Path(value) for variable in configured if (value := os.environ.get(variable)))
    with contextlib.suppress(RuntimeError):  # neither HOME nor an entry among the users
        yield Path.home() / ".cache"
    with contextlib.suppress(OSError):  # no temporary folder takes anything
        yield Path(tempfile.gettempdir()) / f"cache-{os.getuid()}"
    yield _SHARED_MEMORY / f"cache-{os.getuid()}"


@functools.cache
def warn_uncached(reason: str) -> None:
    """Say once for each reason that what is compiled will have to be compiled again."""
    _log.warning("compiled kernels are kept in memory only, so that every start compiles them: %s", reason)
