"""`slipstream quantize`: becomes a module of the kernels, which the launcher itself does without."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from slipstream.packages import child_environment

_MODULE = "slipstream_kernels.models.checkpoint.quantisation"


def run(arguments: Sequence[str]) -> NoReturn:
    """Replace this process by the command."""
    environment = os.environ | child_environment() | {"SLIPSTREAM_QUANTIZE_NAME": "slipstream quantize"}
    command = [sys.executable, "-m", _MODULE, *arguments]
    os.execve(command[0], command, environment)  # noqa: S606  # no shell is wanted
