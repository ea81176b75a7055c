"""What keeps a service from reading a model's folder where it runs: links that lead out of it, and files of others."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path


def named_folders(arguments: Sequence[str]) -> list[Path]:
    """The absolute paths in a command, alone or in a list of NAME:FOLDER, that are folders."""
    parts = (part for argument in arguments for part in re.split(r"[,:=]", argument))
    return [Path(part) for part in dict.fromkeys(parts) if part.startswith("/") and os.path.isdir(part)]  # noqa: PTH112  # never raises


def obstacles(folder: Path) -> Iterator[str]:
    """One line for each file that is not there, or that this process may not read."""
    user = os.geteuid()
    try:
        files = sorted(folder.iterdir())
    except OSError as error:
        yield f"{folder}: {error.strerror}: user {user} may not read the folder, which is user {folder.stat().st_uid}'s"
        return
    for file in files:
        if not os.access(file, os.F_OK):
            yield (
                f"{file}: leads to {_target(file)}, which is not there or may not be entered; of a Hugging Face cache "
                "the snapshot's files are links: mount the model's whole folder, models--..., or the cache"
            )
        elif not os.access(file, os.R_OK):
            yield f"{file}: user {user} may not read it, it is user {file.stat().st_uid}'s"


def _target(file: Path) -> str:
    try:
        return str(file.readlink())
    except OSError:
        return str(file)
