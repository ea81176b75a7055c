"""A JSON file of a model's folder, which is untrusted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from slipstream.lfs_pointer import refuse_pointer
from slipstream.rpc.errors import FailedPreconditionError

MOST_BYTES = 1 << 26


def read_object(path: Path) -> dict[str, Any]:
    """The object in a regular file of at most MOST_BYTES; else FailedPreconditionError, which names the file."""
    try:
        content = json.loads(read_bounded(path, MOST_BYTES))
    except RecursionError as error:
        raise FailedPreconditionError(f"{path}: lists and objects are nested too deeply") from error
    except ValueError as error:
        raise FailedPreconditionError(f"{path}: {error}") from error
    if not isinstance(content, dict):
        raise FailedPreconditionError(f"{path}: not a JSON object")
    return content


def read_bounded(path: Path, most: int) -> bytes:
    """The bytes of a regular file of at most `most`; else FailedPreconditionError, which names the file."""
    try:
        if not path.is_file():
            raise FailedPreconditionError(f"{path}: not a regular file")
        size = path.stat().st_size
        if size > most:
            raise FailedPreconditionError(f"{path}: the file has {size} bytes, the limit is {most}")
        content = path.read_bytes()
    except OSError as error:
        raise FailedPreconditionError(f"{path}: {error.strerror}") from error
    refuse_pointer(path, content)
    return content
