"""A bar on a terminal; where that is a file or a pipe, as a service's log, a line for each tenth of the way."""

from __future__ import annotations

import io
import sys
from typing import Any, Final

from tqdm import tqdm

_UNKNOWN_SECONDS: Final = 30.0
"""Between lines where the end is not known."""


class ProgressBar(tqdm):  # type: ignore[type-arg]  # generic in its stub alone
    """Used as tqdm's own, with `file` among its keywords or standard error."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """See tqdm."""
        file = kwargs.get("file") or sys.stderr
        self._by_line = not file.isatty()
        self._told = -1
        self._told_at: float = -1
        super().__init__(*args, **kwargs)

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Show how far it is, unless lines are written and none is due."""
        if not self._by_line:
            super().display(msg, pos)
            return
        tenth = int(10 * self.n / self.total) if self.total else int(self.format_dict["elapsed"] / _UNKNOWN_SECONDS)
        if tenth > self._told:
            self._tell(tenth)

    def clear(self, *args: Any, **kwargs: Any) -> None:
        """Make room for a line of another's; lines need none."""
        if not self._by_line:
            super().clear(*args, **kwargs)

    def close(self) -> None:
        """Show the last figures, and no more."""
        if self._by_line and not self.disable:
            if self.n > self._told_at:
                self._tell(self._told)
            self.fp = io.StringIO()  # what tqdm leaves on a terminal in the end
        super().close()

    def _tell(self, tenth: int) -> None:
        self._told, self._told_at = tenth, self.n
        self.fp.write(f"{self}\n")
        self.fp.flush()
