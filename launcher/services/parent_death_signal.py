"""Runs a command that gets SIGTERM when the process that started it is gone, however that died.

    python parent_death_signal.py PARENT_PID COMMAND [ARGUMENT ...]

Uses Linux's parent-death signal, which belongs to the starting *thread*: start it from one that lives as long as the
process. Elsewhere it only runs the command. Run by path and isolated, so it imports the standard library alone.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Set the parent-death signal, then become the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606  # no shell is wanted


if __name__ == "__main__":
    main()
