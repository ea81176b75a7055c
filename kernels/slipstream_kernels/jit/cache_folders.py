"""Where compiled kernels are kept, on machines whose home is missing, unwritable or full.

A folder is used only if nobody else can write it, since what it holds will be executed, and if it takes as much as a
kernel needs.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from slipstream_kernels.jit.cache_trust import distrusted

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
    """Whether `folder` exists or can be made, is ours, and has room. Warns of one that others can write."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            return False
        if reason := distrusted(folder):
            _warn_distrusted(folder, reason)
            return False
        return _has_room(folder)
    except (OSError, ValueError):
        return False


def settle_triton_cache() -> None:
    """Have Triton keep its kernels where nobody else can write, if its own folder takes none or others can write it.

    To be called before Triton compiles any.
    """
    _settle("TRITON_CACHE_DIR", (".triton", "cache"), "", "slipstream-triton", "Triton")


def settle_flashinfer_cache() -> None:
    """The same for FlashInfer, which makes its folder as it is imported: to be called before that."""
    _settle("FLASHINFER_WORKSPACE_BASE", (), ".cache/flashinfer", "slipstream-flashinfer", "FlashInfer")


def _settle(variable: str, below_home: tuple[str, ...], kept_in: str, name: str, library: str) -> None:
    """Point `variable` to a folder of ours unless the one it names, or the default below the home folder, will do.

    kept_in: where below that folder the library keeps its kernels.
    """
    try:
        base = Path(named) if (named := os.environ.get(variable)) else Path.home().joinpath(*below_home)
        if is_usable(base / kept_in):
            return
    except RuntimeError:  # neither HOME nor an entry among the users
        pass
    folder = first_usable(name)
    if folder is not None:
        os.environ[variable] = str(folder)
        _log.warning("%s's own folder takes no kernels, they are kept in %s", library, folder)


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


@functools.cache
def _warn_distrusted(folder: Path, reason: str) -> None:
    _log.warning("compiled kernels in %s are not read, as others may have written them: %s", folder, reason)
