"""Runs a command that gets a signal when the process that started it is gone, however that died.

    python parent_death_signal.py PARENT_PID SIGNAL_NUMBER COMMAND [ARGUMENT ...]

Uses Linux's parent-death signal, which belongs to the starting *thread*: start it from one that lives as long as the
process. Elsewhere it only runs the command. Run by path and isolated, so it imports the standard library alone.
"""

from __future__ import annotations

import ctypes
import os
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Set the parent-death signal, then become the command."""
    parent, number, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606  # no shell is wanted


if __name__ == "__main__":
    main()
