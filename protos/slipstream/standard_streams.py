"""Standard input, output and error of a process that was started without some of them (`>&- 2>&-`)."""

from __future__ import annotations

import os
import sys


def open_standard_streams() -> None:
    """Put the null device where one of the three is closed, before anything else is opened.

    Otherwise the next socket or file takes its number, and what is printed goes into that.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            os.set_inheritable(number, True)
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace", closefd=False))
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
