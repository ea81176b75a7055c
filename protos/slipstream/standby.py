"""A service whose process is started ahead of its command, so that what each start costs is paid before it is needed.

`python -m SERVICE --standby` imports what the service is going to use, says so on standard output, and waits on its
standard input for one line: the arguments that it would have been started with, as a JSON list. It ends with the input.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Final

FLAG: Final = "--standby"
READY: Final = "stands by"
"""The line that says that the process waits for its arguments."""


def stand_by(prepare: Callable[[], object]) -> None:
    """Prepare, wait, and take the arguments on, where --standby is all that this process was told; else do nothing.

    SystemExit with status 0 where no arguments come.
    """
    if sys.argv[1:] != [FLAG]:
        return
    prepare()
    sys.stdout.write(f"{READY}\n")
    sys.stdout.flush()
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    sys.argv[1:] = json.loads(line)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
