"""How answers are asked for."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import Any

from slipstream.completion import Options


@dataclass(frozen=True, slots=True)
class AnswerSettings:
    """Everything that decides an answer, beside prompt and model. Equal settings give equal answers, token by token."""

    temperature: float = 0.8
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 1024
    """Of one answer; less where the context ends before."""
    max_turns: int = 16
    """Answers of one conversation; later questions are left out."""
    seed: int = 0
    model: str = ""
    """Name at the gateway; empty: the only one."""

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    def seed_of(self, key: str, turn: int) -> int:
        """The seed of an answer, of 63 bits: a function of the conversation and the turn, not of what runs beside."""
        digest = hashlib.sha256(f"{self.seed}:{key}:{turn}".encode()).digest()
        return int.from_bytes(digest[:8], "little") >> 1

    def options(self, key: str, turn: int, room: int) -> Options:
        """Options of one answer; `room`: tokens the context still holds."""
        return Options(
            model=self.model,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            max_tokens=min(self.max_tokens, room),
            seed=self.seed_of(key, turn),
        )
