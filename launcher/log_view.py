"""The services' logs in one terminal, each line under its service's name."""

from __future__ import annotations

import contextlib
import threading
from typing import TextIO

_COLOURS = {"gateway": "36", "verify": "32", "draft": "35", "slipstream": "1"}
_WIDTH = max(len(name) for name in _COLOURS)


class LogView:
    """Writes whole lines from any thread; colours only on a terminal. Lines that nobody can read are dropped."""

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._colour = output.isatty()
        self._lock = threading.Lock()

    def __call__(self, name: str, line: str) -> None:
        """Write one line of a service."""
        label = name.ljust(_WIDTH)
        if self._colour:
            label = f"\x1b[{_COLOURS.get(name, '0')}m{label}\x1b[0m"
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._output.write(f"{label} | {line}\n")
            self._output.flush()
