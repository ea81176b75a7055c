"""What is asked: prompts, their noise, and the adapter that each is asked with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from benchmarks.exactness.cells import PLAIN
from benchmarks.lib.prompts import Prompt, spread
from benchmarks.lib.runner import Job

SEED = 20_240
CROSS_PROMPTS = 48
QUICK_PROMPTS = 12
TOP_LOGPROBS = 4


@dataclass(frozen=True, slots=True)
class Case:
    """One prompt with its token ids, its noise and its adapter."""

    prompt: Prompt
    ids: tuple[int, ...]
    seed: int
    crossed: bool
    """Whether it is one of the prompts that all engine settings run."""
    logprobs: bool
    """Whether logprobs are asked for and compared: of all crossed prompts, and equally in a quick run."""
    adapter: str = ""
    """Empty: the model alone."""

    @property
    def name(self) -> str:
        """What tells it from other cases."""
        return f"{self.prompt.name} with {self.adapter}" if self.adapter else self.prompt.name

    def job(self, temperature: float, tokens: int, proposer: str = "") -> Job:
        """The request for this prompt; an empty proposer or `none` decodes plainly."""
        return Job(
            self.ids,
            tokens,
            temperature=temperature,
            seed=self.seed,
            proposer="" if proposer == PLAIN else proposer,
            logprobs=TOP_LOGPROBS if self.logprobs else None,
            ignore_eos=True,
            adapter=self.adapter,
        )


def make_cases(
    prompts: Sequence[Prompt], ids: Sequence[tuple[int, ...]], *, quick: bool, adapters: Sequence[str] = ()
) -> list[Case]:
    """Each prompt with the model alone and with each adapter, under one seed.

    Those of the cross part are spread over the categories, from the shorter half of each: fewer with adapters, of
    which each makes a case of its own. With adapters the order is shuffled, so that those of one prompt lie apart.
    """
    middle: dict[str, int] = {}
    for category in {prompt.category for prompt in prompts}:
        lengths = sorted(len(i) for p, i in zip(prompts, ids, strict=True) if p.category == category)
        middle[category] = lengths[(len(lengths) - 1) // 2]
    short = [p for p, i in zip(prompts, ids, strict=True) if len(i) <= middle[p.category]]
    chosen = spread(short, min(CROSS_PROMPTS, max(QUICK_PROMPTS, len(prompts) // 10)))
    logprobs = {prompt.name for prompt in chosen}
    most = (QUICK_PROMPTS if quick else len(chosen)) // (1 + 2 * len(adapters))
    crossed = {prompt.name for prompt in (spread(chosen, max(1, most)) if quick or adapters else chosen)}
    cases = [
        Case(prompt, each, SEED + index, prompt.name in crossed, prompt.name in logprobs, adapter)
        for index, (prompt, each) in enumerate(zip(prompts, ids, strict=True))
        for adapter in ("", *adapters)
    ]
    if adapters:
        Random(SEED).shuffle(cases)
    return cases
