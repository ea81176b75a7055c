"""`slipstream train`: becomes `python -m training`, whose packages the launcher itself does without."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from slipstream.packages import child_environment


def run(arguments: Sequence[str]) -> NoReturn:
    """Replace this process by the stage."""
    environment = os.environ | child_environment() | {"SLIPSTREAM_TRAIN_NAME": "slipstream train"}
    command = [sys.executable, "-m", "training", *arguments]
    os.execve(command[0], command, environment)  # noqa: S606  # no shell is wanted
