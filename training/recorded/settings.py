"""What recordings are made into sequences with."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RecordingSettings:
    """Everything that decides the sequences, beside the recordings and what the target's folder says."""

    max_tokens: int
    """Of a sequence: conversations are cut there, texts go on in another one."""
    limit: int = 0
    """Lines at most, evenly spread over the inputs; 0: all."""
    field: str | None = None

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)
