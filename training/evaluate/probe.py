"""One conversation under one proposer: how many tokens each verify step of its answers yielded."""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from slipstream.client import AsyncClient
from slipstream.completion import Completion, Model, SpeculationOptions
from training.answers.asker import Asker
from training.evaluate.settings import AcceptanceSettings, Cell
from training.prompts.records import Prompt

GRAM: Final = 16
"""An answer repeats itself if some run of so many tokens occurs twice in it."""


@dataclass(slots=True)
class _Asker(Asker):
    """Asks under a proposer, and keeps the answers whole."""

    speculation: SpeculationOptions = field(default_factory=SpeculationOptions)
    tenant: str = ""
    completions: list[Completion] = field(default_factory=list)

    async def generate(self, prompt_ids: list[int], options: Any) -> Completion:
        asked = options | {"speculation": self.speculation, "tenant": self.tenant}
        completion = await Asker.generate(self, prompt_ids, asked)
        self.completions.append(completion)
        return completion


@dataclass(frozen=True, slots=True)
class Probe:
    """Asks one gateway; `patience` and `retries` are those of `Asker`."""

    client: AsyncClient
    model: Model
    settings: AcceptanceSettings
    patience: float
    retries: Counter[str] = field(default_factory=Counter)

    async def measure(self, prompt: Prompt, cell: Cell) -> dict[str, Any]:
        """What the conversation came to, as the journal has it. GatewayGoneError when patience is at an end."""
        asker = _Asker(
            self.client,
            self.model,
            self.settings.answers(cell),
            self.patience,
            self.retries,
            speculation=cell.speculation,
            tenant=cell.tenant,
        )
        answered = await asker.answer(prompt)
        tokens = [token for completion in asker.completions for token in completion.token_ids]
        return {
            "id": record_key(prompt.key, cell),
            "category": prompt.category,
            "failure": answered.failure,
            "answers": [_figures(completion) for completion in asker.completions],
            "digest": hashlib.sha256(array("q", tokens).tobytes()).hexdigest()[:32],
        }


def record_key(conversation: str, cell: Cell) -> str:
    """Names a conversation under a cell: 32 hexadecimal digits."""
    text = f"{conversation}:{cell.proposer}:{cell.temperature!r}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _figures(completion: Completion) -> dict[str, Any]:
    """Of one answer. The step that ends the prompt cannot hold a tree: neither it nor its token counts.

    `accepted`: how many steps with a tree had so many of its tokens accepted. `room`: steps that had room for one, all
    but a last one of a single token. Seconds are those after the first token.
    """
    steps = completion.steps[1:]
    cramped = completion.finish_reason == "length" and any(not step.drafted for step in steps[-1:])
    accepted = Counter(step.accepted for step in steps if step.drafted)
    return {
        "decoded": max(len(completion.token_ids) - 1, 0),
        "steps": len(steps),
        "room": len(steps) - cramped,
        "drafted": sum(step.drafted for step in steps),
        "accepted": {str(count): accepted[count] for count in sorted(accepted)},
        "seconds": max(completion.timings.total - completion.timings.first_token, 0.0),
        "repeats": repeats(completion.token_ids),
    }


def repeats(tokens: Sequence[int], size: int = GRAM) -> bool:
    """Whether some run of `size` tokens occurs twice."""
    grams = [tuple(tokens[start : start + size]) for start in range(len(tokens) - size + 1)]
    return len(set(grams)) < len(grams)
