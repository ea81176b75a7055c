"""How this program's commands are called where it was started."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

COMMAND = "slipstream"


def command_name() -> str:
    """What runs this program's commands where it was started: `slipstream` if that is found, else a path that works."""
    own = Path(sys.executable).with_name(COMMAND)
    found = shutil.which(COMMAND)
    if found is not None and (not own.exists() or Path(found).samefile(own)):
        return COMMAND
    if not own.exists():
        return f"{shlex.quote(sys.executable)} -m launcher"
    relative = os.path.relpath(own)
    if os.sep not in relative:
        relative = os.path.join(os.curdir, relative)  # noqa: PTH118  # Path would leave the dot out
    return shlex.quote(relative if len(relative) < len(str(own)) else str(own))
