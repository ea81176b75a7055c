"""How this folder's structures are compiled: numba, with the disk cache of `slipstream_kernels.jit.compiler`.

Functions inline one another across files, and numba notices changes of one file only; so the cache folder carries a
digest of all files that hold compiled code.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

from slipstream_kernels.jit.compiler import keep_on_disk

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile `function` at its first call, without the GIL; kept on disk, so only a machine's first start waits."""
    dispatcher = numba.njit(nogil=True, error_model="numpy")(function)
    keep_on_disk(dispatcher, f"proposers-{_source_digest()}")
    return cast(Function, dispatcher)


@functools.cache
def _source_digest() -> str:
    """Of the files that compiled code is in: all of them use the intrinsics of `slipstream_kernels`."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        source = path.read_bytes()
        if b"slipstream_kernels.jit.intrinsics" in source:
            digest.update(source)
    return digest.hexdigest()[:16]
