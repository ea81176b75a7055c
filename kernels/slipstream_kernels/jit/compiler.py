"""How kernels are compiled: numba's nopython mode, IEEE arithmetic, a disk cache that knows every source file.

Kernels inline one another across files, so a cached binary is valid for one state of the whole package only.
The cache folder therefore carries a digest of all of its sources. A folder that cannot be written to, or is full, costs
time at every start and nothing else.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import pickle
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core import config, sigutils
from numba.core.ccallback import CFunc
from numba.core.registry import cpu_target

from slipstream_kernels.jit.cache_folders import first_usable, warn_uncached
from slipstream_kernels.jit.compile_turns import CompileTurns

numba_config: Any = config
"""Numba's settings, which it makes at import from the environment."""

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Compile `function` at its first call, without the GIL, without reassociation or contraction."""
    compiled = numba.njit(nogil=True, error_model="numpy")(function)
    keep_on_disk(compiled)
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
        signature = sigutils.normalize_signature("void(int64)")
        compiled = CFunc(self._function, signature, locals={}, options={"error_model": "numpy"})
        keep_on_disk(compiled)
        compiled.compile()
        return compiled


def meet_types() -> None:
    """Have numba learn the types that it compiles, which it does once a process: here, or at the first kernel."""
    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()


def tuple_type(record: type, name: str, module: str) -> Any:
    """A named tuple type with the fields of a dataclass: the form in which kernels take several arrays.

    Numba's cache finds the type again under `name` in `module`.
    """
    names = [field.name for field in dataclasses.fields(record)]
    return collections.namedtuple(name, names, module=module)  # noqa: PYI024 (fields from data)


def keep_on_disk(compiled: Any, below: str = "") -> None:
    """Have numba keep what it compiles for a dispatcher or callback, as long as the disk takes it.

    below: a folder in the project's own, for code whose sources lie elsewhere.
    """
    folder = cache_folder()
    if folder is None:
        warn_uncached("no folder takes them; name one with NUMBA_CACHE_DIR")
        return
    try:
        with _cache_location(folder / below):
            compiled.enable_caching()
    except (OSError, RuntimeError) as error:  # numba has no locator for a folder that takes nothing
        warn_uncached(str(error))
        return
    cache = compiled._cache  # noqa: SLF001 - numba has no other way to keep a failing disk from failing the call
    cache._guard_against_spurious_io_errors = _without_disk_errors  # noqa: SLF001 - as above
    CompileTurns(cache)


@contextmanager
def _without_disk_errors() -> Iterator[None]:
    """What a disk refuses to take is compiled all the same, and what it gives back damaged is compiled again."""
    try:
        yield
    except (OSError, EOFError, ValueError, LookupError, pickle.UnpicklingError) as error:
        reason = error.strerror if isinstance(error, OSError) else repr(error)
        warn_uncached(f"{cache_folder()}: {reason}")


@contextmanager
def _cache_location(folder: Path) -> Iterator[None]:
    """Numba reads its cache folder when it decorates; other users of numba in the process keep theirs."""
    previous = numba_config.CACHE_DIR
    numba_config.CACHE_DIR = str(folder)
    try:
        yield
    finally:
        numba_config.CACHE_DIR = previous


@functools.cache
def cache_folder() -> Path | None:
    """Where compiled kernels are kept; None: nowhere. See `cache_folders.first_usable`."""
    return first_usable(f"slipstream-kernels-{_source_digest()}", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME")


def _source_digest() -> str:
    digest = hashlib.sha256(f"{numba.__version__} {platform.machine()} {platform.python_version()}".encode())
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
