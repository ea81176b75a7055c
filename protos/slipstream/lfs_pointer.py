"""Pointers of git-lfs: the few lines that stand in a clone for a large file that was not fetched.

Their form: https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from slipstream.rpc.errors import FailedPreconditionError

BEGINNING: Final = b"version https://git-lfs.github.com/spec/v1"


def refuse_pointer(path: Path, content: bytes) -> None:
    """FailedPreconditionError, which says what to do, if what a file holds begins as a pointer does."""
    if content.startswith(BEGINNING):
        raise FailedPreconditionError(
            f"{path}: a git-lfs pointer stands here, not the file itself; run `git lfs pull` in {path.parent}"
        )
