"""What people bring where the folder of a checkpoint is expected: a hub's name, a clone without its large files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from slipstream.json_file import read_object
from slipstream.lfs_pointer import BEGINNING, refuse_pointer
from slipstream.rpc.errors import FailedPreconditionError

TEMPLATE_FILE: Final = "chat_template.jinja"
_HUB_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_MOST_FILES: Final = 4096
_CHECKED: Final = frozenset({".bin", ".jinja", ".json", ".model", ".pt", ".safetensors", ".txt"})
"""What files of checkpoints end with."""


def no_such_folder(given: str | Path) -> str:
    """What to tell of a folder that is not there. `given` is what was written, before it was resolved."""
    name = str(given)
    if not _HUB_NAME.fullmatch(name):
        return f"no such folder: {Path(name).expanduser().absolute()}"
    return (
        f"no such folder: {name}; if that is a model's name on a hub, fetch it first, as nothing is downloaded here: "
        f"`hf download {name} --local-dir {name.partition('/')[2]}`, and name that folder"
    )


def refuse_pointers(folder: Path) -> None:
    """FailedPreconditionError if a pointer of git-lfs lies in the folder of a checkpoint in place of one of its files.

    What cannot be read is left to others.
    """
    for path in sorted(folder.iterdir())[:_MOST_FILES]:
        if path.suffix in _CHECKED and path.is_file():
            try:
                with path.open("rb") as file:
                    beginning = file.read(len(BEGINNING))
            except OSError:
                continue
            refuse_pointer(path, beginning)


def has_chat_template(folder: Path) -> bool:
    """Whether a checkpoint brings a chat template. It is neither read nor compiled; a broken file counts as none."""
    if (folder / TEMPLATE_FILE).exists():
        return True
    try:
        return bool(read_object(folder / "tokenizer_config.json").get("chat_template"))
    except FailedPreconditionError:
        return False
