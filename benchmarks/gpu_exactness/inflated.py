"""Greedy tokens of an inflated model against those of the model it was made from, near-ties looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.inflate.shape import Shape
from benchmarks.lib.report import markdown_table
from benchmarks.local_engine.local_loop import Answer, EngineConfig, Job, local_loop
from benchmarks.local_engine.measured_model import make_weights, start_model

BATCH = 16
PAGE_SIZE = 16
NEAR_TIE = 0.125
"""Natural logarithms of probability between the two likeliest tokens under which the small model calls it a near-tie.

Both models round activations to bfloat16 at the same places, but sum in different orders, so that single values round
the other way; a logit of about 20 is then off by up to some hundredths.
"""


@dataclass(slots=True)
class InflatedCount:
    """What comparing greedy answers yielded."""

    prompts: int = 0
    tokens: int = 0
    equal_answers: int = 0
    equal_tokens: int = 0
    """Up to the first difference of each answer: what follows it is another text."""
    unexplained: int = 0
    """Answers that differ where there was no near-tie."""
    first_differences: list[float] | None = None
    """Where an answer leaves the small model's: how far apart that model's two likeliest tokens were."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        gaps = ", ".join(f"{gap:.4f}" for gap in self.first_differences or ()) or "none"
        values: list[list[object]] = [
            ["prompts", self.prompts],
            ["tokens", self.tokens],
            ["answers equal to the last token", self.equal_answers],
            ["tokens before the first difference", self.equal_tokens],
            [f"differences where the gap is above {NEAR_TIE:g}", self.unexplained],
            ["gaps at first differences", gaps],
        ]
        return markdown_table(("inflated against small", "value"), values)

    def failures(self) -> list[str]:
        """What shows that the inflated model computes something else."""
        found = []
        if self.unexplained:
            found.append(f"{self.unexplained} answers differ where the small model saw no near-tie")
        if self.equal_tokens < self.tokens // 2:
            found.append(f"only {self.equal_tokens} of {self.tokens} tokens come before a first difference")
        return found

    def add(self, small: Answer, large: Answer) -> None:
        """Compare two greedy answers of one prompt; `small` has logprobs of its two likeliest tokens."""
        length = len(small.token_ids)
        same = next((i for i in range(length) if small.token_ids[i] != large.token_ids[i]), length)
        self.prompts += 1
        self.tokens += length
        self.equal_tokens += same
        self.equal_answers += same == length
        if same < length:
            first, second = small.logprobs[same].top[:2]
            gap = first.logprob - second.logprob
            self.first_differences = [*(self.first_differences or ()), gap]
            self.unexplained += gap > NEAR_TIE


def compare_inflated(
    model: Path, shape: Shape, prompts: Sequence[tuple[int, ...]], tokens: int, device: str
) -> InflatedCount:
    """Let both models answer every prompt."""
    small = _answers("folder", model, shape, prompts, tokens, device, top=2)
    large = _answers("inflated", model, shape, prompts, tokens, device, top=None)
    count = InflatedCount()
    for pair in zip(small, large, strict=True):
        count.add(*pair)
    return count


def _answers(
    kind: str,
    folder: Path,
    shape: Shape,
    prompts: Sequence[tuple[int, ...]],
    tokens: int,
    device: str,
    *,
    top: int | None,
) -> list[Answer]:
    longest = max(map(len, prompts)) + tokens + 1
    batch = min(BATCH, len(prompts))
    config = EngineConfig(
        num_pages=(batch + 1) * -(-longest // PAGE_SIZE),
        page_size=PAGE_SIZE,
        max_running=batch,
        max_nodes=1,
        step_nodes=0,
        max_context=longest,
    )
    engine = start_model(make_weights(kind, folder, shape, device), config, mode="exact")
    with local_loop(engine, config) as loop:
        return loop.run([Job(prompt, tokens, logprobs=top) for prompt in prompts], batch)
