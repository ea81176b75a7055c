"""The services' logs in one terminal, each line under its service's name."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from types import TracebackType
from typing import Self, TextIO

from slipstream.rpc.logs import LogFormat, json_line

_COLOURS = {"gateway": "36", "verify": "32", "draft": "35", "slipstream": "1"}
_WIDTH = max(len(name) for name in _COLOURS)
_OBJECT = '{"time": '
"""How a service's own lines begin."""
FLUSH_SECONDS = 2.0


class LogView:
    """Writes whole lines from any thread; colours only on a terminal.

    Nobody who logs waits for the reader: a terminal that is stopped must not stop the services. Up to `max_lines`
    are kept for it, those beyond are dropped and counted, as are lines that nobody can read. At the end of a `with`
    block what is left gets a moment to be written.

    In style json all lines are JSON objects: those of services as they are, what else a process writes as `message`.
    """

    def __init__(self, output: TextIO, max_lines: int = 10_000, style: LogFormat = "text") -> None:
        self._output = output
        self._max_lines = max_lines
        self._style = style
        self._colour = output.isatty()
        self._lines: deque[str] = deque()
        self._changed = threading.Condition()
        self._dropped = 0
        self._writing = False
        threading.Thread(target=self._write, name="log-view", daemon=True).start()

    def __call__(self, name: str, line: str) -> None:
        """Have one line of a service written."""
        shown = self._shown(name, line)
        with self._changed:
            if len(self._lines) < self._max_lines:
                self._lines.append(shown)
                self._changed.notify_all()
            else:
                self._dropped += 1

    def flush(self, seconds: float = FLUSH_SECONDS) -> bool:
        """Wait until all is written, or so long; whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._lines or self._writing), seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.flush()

    def _shown(self, name: str, line: str) -> str:
        if self._style == "json":
            return f"{line if line.startswith(_OBJECT) else json_line(name, line)}\n"
        label = name.ljust(_WIDTH)
        if self._colour:
            label = f"\x1b[{_COLOURS.get(name, '0')}m{label}\x1b[0m"
        return f"{label} | {line}\n"

    def _write(self) -> None:
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._lines)
                self._writing = True
                text, dropped = "".join(self._lines), self._dropped
                self._lines.clear()
                self._dropped = 0
            if dropped:
                text += self._shown("slipstream", f"{dropped} lines were dropped, as nobody read them")
            with contextlib.suppress(OSError, ValueError):
                self._output.write(text)
                self._output.flush()
