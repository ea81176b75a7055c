"""Where the worker picks up records itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from draft_service.protocol.records import Record


class RecordSource(Protocol):
    """Where the worker picks up records itself. Nothing raises.

    All but `wake` are called on the worker's thread, `receive` also where `Worker.begin` is.
    """

    def receive(self) -> Sequence[Record]:
        """What has arrived, in order."""
        ...

    def wait(self, seconds: float) -> None:
        """Return when something may have arrived, when woken, or after `seconds`."""
        ...

    def wake(self) -> None:
        """End a wait. For any thread."""
        ...

    def close(self) -> None:
        """Let go of what is held; the attachment is over."""
        ...
