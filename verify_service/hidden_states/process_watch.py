"""The process of a drafter, watched from here: memory that it maps is not given to others while it may live."""

from __future__ import annotations

import os
import select
from contextlib import suppress
from pathlib import Path

from slipstream.rpc.errors import FailedPreconditionError

_STARTED_AT = 19
"""Index of a process's start time among the words behind its name in /proc/PID/stat."""


class DraftProcess:
    """A process by its number and start, which no other has had. Two of the same process are equal."""

    def __init__(self, process_id: int) -> None:
        """FailedPreconditionError if no such process can be seen from here, or it is another user's."""
        self._folder = Path(f"/proc/{process_id}")
        try:
            self._identity = (process_id, self._started_at())
            if os.geteuid() not in (0, self._folder.stat().st_uid):
                raise FailedPreconditionError(f"process {process_id} is another user's")
            self._descriptor = _pidfd(process_id)
        except (OSError, ValueError, IndexError, OverflowError) as error:
            raise FailedPreconditionError(f"process {process_id} cannot be seen from here") from error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DraftProcess) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __del__(self) -> None:
        descriptor = getattr(self, "_descriptor", None)
        if descriptor is not None:
            os.close(descriptor)

    @property
    def gone(self) -> bool:
        """Whether it has ended, and with it all that it had mapped."""
        if self._descriptor is not None:
            ended = select.poll()  # which takes descriptors of any number
            ended.register(self._descriptor, select.POLLIN)
            return bool(ended.poll(0))
        with suppress(OSError, ValueError, IndexError):
            return self._started_at() != self._identity[1]
        return True

    def _started_at(self) -> int:
        words = (self._folder / "stat").read_text().rpartition(")")[2].split()
        if words[0] in "ZX":
            raise OSError("it has ended")
        return int(words[_STARTED_AT])


def _pidfd(process_id: int) -> int | None:
    """None where the system has none: then its start time tells."""
    try:
        return os.pidfd_open(process_id)
    except (AttributeError, PermissionError, OSError) as error:
        if isinstance(error, ProcessLookupError):
            raise
        return None
