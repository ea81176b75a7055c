"""Whether another user or service can have written what lies in a folder: compiled code is executed as it is read.

numba's index files are pickles, Triton's and FlashInfer's caches are machine code. Whoever can write one runs code in
the service that reads it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

_WRITABLE_BY_GROUP, _WRITABLE_BY_ALL = stat.S_IWGRP, stat.S_IWOTH


def distrusted(folder: Path) -> str:
    """Why the content of `folder` cannot be trusted, with the path at fault; empty if only this user and root write it.

    `folder` exists, or its nearest parent that exists is judged. Looks at the folder, at everything below it, and at
    every parent, as who may write a parent may put another folder in place of one below. Links are followed up to
    the folder and refused below it. Raises OSError where the folder cannot be read.
    """
    real = folder.resolve()
    for parent in (*reversed(real.parents), real):
        if not parent.exists():
            return ""
        if reason := _writers(parent, parent.lstat(), sticky_protects=parent != real):
            return reason
    return _below(real)


def _below(folder: Path) -> str:
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place, name)
            status = path.lstat()
            if stat.S_ISLNK(status.st_mode):
                return f"{path} is a link"
            if reason := _writers(path, status, sticky_protects=False):
                return reason
    return ""


def _writers(path: Path, status: os.stat_result, *, sticky_protects: bool) -> str:
    """Who beside this user and root may write a path; the sticky bit of a parent protects what lies in it."""
    if status.st_uid not in (0, os.getuid()):
        return f"{path} belongs to user {status.st_uid}, this is user {os.getuid()}"
    if sticky_protects and status.st_mode & stat.S_ISVTX:
        return ""
    if status.st_mode & _WRITABLE_BY_ALL:
        return f"every user may write {path}"
    if status.st_mode & _WRITABLE_BY_GROUP and not _own_group(status.st_gid):
        return f"group {status.st_gid} may write {path}"
    return ""


def _own_group(group: int) -> bool:
    """Whether a group is root's, or that of one user alone: by convention it has the user's number."""
    return group in (0, os.getuid())
