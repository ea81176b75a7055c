"""Sources from which the worker reads records itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from draft_service.protocol.records import Record


class RecordSource(Protocol):
    """A source of records that the worker reads. Nothing raises.

    All but `wake` are called on the worker's thread, `receive` also where `Worker.begin` is.
    """

    def receive(self) -> Sequence[Record]:
        """Return the records that have arrived, in order."""
        ...

    def wait(self, seconds: float) -> None:
        """Wait until something may have arrived or `wake` is called, `seconds` at most."""
        ...

    def wake(self) -> None:
        """End a wait. May be called from any thread."""
        ...

    def close(self) -> None:
        """Release the source; the attachment is over."""
        ...
