"""How this folder's structures are compiled: numba through `slipstream_kernels.jit`, cached for one state of it.

Functions here inline one another across files, and numba notices changes of one file only; so the cache folder carries
a digest of all of them.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

from slipstream_kernels.jit import cache_folder, numba_config

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile `function` at its first call, without the GIL; kept on disk, so only a machine's first start waits."""
    previous = numba_config.CACHE_DIR
    numba_config.CACHE_DIR = str(cache_folder() / f"proposers-{_source_digest()}")
    try:
        return cast(Function, numba.njit(nogil=True, cache=True, error_model="numpy")(function))
    finally:
        numba_config.CACHE_DIR = previous


@functools.cache
def _source_digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
