"""How kernels are compiled: numba's nopython mode, IEEE arithmetic, a disk cache that knows every source file.

Kernels inline one another across files, so a cached binary is valid for one state of the whole package only.
The cache folder therefore carries a digest of all of its sources.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import os
import platform
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core import config

numba_config: Any = config
"""Numba's settings, which it makes at import from the environment."""

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Compile `function` at its first call, without the GIL, without reassociation or contraction."""
    with _cache_location():
        compiled = numba.njit(nogil=True, cache=True, error_model="numpy")(function)
    return cast(Function, compiled)


class Job:
    """A kernel `function(args: address) -> None` that a `Team` runs on all of its threads, compiled at first use."""

    __slots__ = ("__dict__", "_function")

    def __init__(self, function: Callable[[int], None]) -> None:
        self._function = function

    @functools.cached_property
    def address(self) -> int:
        """Address of the compiled code. It lives as long as the job."""
        return cast(int, self._compiled.address)

    @functools.cached_property
    def _compiled(self) -> Any:
        with _cache_location():
            return numba.cfunc("void(int64)", cache=True, error_model="numpy")(self._function)


def tuple_type(record: type, name: str, module: str) -> Any:
    """A named tuple type with the fields of a dataclass: the form in which kernels take several arrays.

    Numba's cache finds the type again under `name` in `module`.
    """
    names = [field.name for field in dataclasses.fields(record)]
    return collections.namedtuple(name, names, module=module)  # noqa: PYI024 (fields from data)


@contextmanager
def _cache_location() -> Iterator[None]:
    """Numba reads its cache folder when it decorates; other users of numba in the process keep theirs."""
    previous = numba_config.CACHE_DIR
    numba_config.CACHE_DIR = str(cache_folder())
    try:
        yield
    finally:
        numba_config.CACHE_DIR = previous


@functools.cache
def cache_folder() -> Path:
    """Where compiled kernels are kept: NUMBA_CACHE_DIR, else the user's cache folder, else a private temporary one."""
    name = f"slipstream-kernels-{_source_digest()}"
    configured = [os.environ.get(variable) for variable in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")]
    usual = [Path.home() / ".cache", Path(tempfile.gettempdir()) / f"cache-{os.getuid()}"]
    for base in [*map(Path, filter(None, configured)), *usual]:
        folder = base / name
        if _is_private(folder):
            return folder
    return Path(tempfile.mkdtemp(prefix="slipstream-kernels-"))


def _is_private(folder: Path) -> bool:
    """Whether `folder` exists or can be made, is writable, and is ours: what it holds will be executed."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder.stat().st_uid == os.getuid()
    except OSError:
        return False


def _source_digest() -> str:
    digest = hashlib.sha256(f"{numba.__version__} {platform.machine()} {platform.python_version()}".encode())
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
