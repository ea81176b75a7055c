"""Requests over time: tenants with a long prefix each, or prompts that share nothing."""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass

from benchmarks.routing.machine import Request
from gateway.core.request import ChoiceRequest, Sampling

_VOCABULARY = 128_000


@dataclass(frozen=True, slots=True)
class Workload:
    """`count` requests that arrive at `rate` a second, as Poisson has it; `tenants` 0: each prompt is its own."""

    rate: float
    count: int
    tenants: int
    prefix_tokens: int
    question_tokens: int
    output_tokens: int

    def requests(self, seed: int) -> list[Request]:
        """The same requests for the same seed. Lengths vary from half to three halves of what is stated."""
        chance = random.Random(seed)
        prefixes = [self._tokens(chance, self.prefix_tokens) for _ in range(self.tenants)]
        found: list[Request] = []
        now = 0.0
        for number in range(self.count):
            now += chance.expovariate(self.rate)
            tenant = chance.randrange(self.tenants) if self.tenants else 0
            prompt = array("I", prefixes[tenant]) if self.tenants else self._spread(chance, self.prefix_tokens)
            prompt.extend(self._spread(chance, self.question_tokens))
            output = round(self.output_tokens * chance.uniform(0.5, 1.5))
            choice = ChoiceRequest(prompt, Sampling(), tenant=f"tenant-{tenant}")
            found.append(Request(now, choice, max(1, output), number=number))
        return found

    def _spread(self, chance: random.Random, count: int) -> array[int]:
        return self._tokens(chance, round(count * chance.uniform(0.5, 1.5)))

    @staticmethod
    def _tokens(chance: random.Random, count: int) -> array[int]:
        return array("I", (chance.randrange(_VOCABULARY) for _ in range(count)))
