"""Runs prompts through real services with chosen proposers, and counts what came of it.

Every run has a tenant of its own, so that no proposer has seen its answers before. Its prompts are computed once
beforehand, so that speeds are those of decoding.
"""

from __future__ import annotations

import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.lib.runner import Answer, Job, Runner, connect
from launcher.services.free_ports import free_ports
from launcher.supervision.cluster import Cluster

SEED = 7_001
GRAM = 16
_SCRAPE_SECONDS = 30.0

Prompts = Sequence[tuple[int, ...]]
"""Token ids of each prompt."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How requests ask for speculation; None leaves a limit to the operator.

    proposer: as the draft service hosts it, empty for plain decoding. adaptive: nothing is asked for, so that the
    operator's default proposer and node budget count.
    """

    name: str
    proposer: str = ""
    max_nodes: int | None = None
    max_depth: int | None = None
    adaptive: bool = False


PLAIN = Setting("plain")


@dataclass(slots=True)
class AnswerSums:
    """Sums over answers."""

    answers: int = 0
    repeating: int = 0
    """Answers in which some run of 16 tokens occurs twice."""
    tokens: int = 0
    decoded: int = 0
    decode_steps: int = 0
    drafted: int = 0
    accepted: int = 0

    def add(self, answer: Answer) -> None:
        self.answers += 1
        self.repeating += repeats(answer.token_ids)
        self.tokens += len(answer.token_ids)
        self.decoded += answer.decoded
        self.decode_steps += answer.decode_steps
        self.drafted += answer.drafted
        self.accepted += answer.accepted

    @property
    def acceptance_length(self) -> float | None:
        """Tokens a verify step yielded, over all steps of all answers but those that ended the prompts."""
        return self.decoded / self.decode_steps if self.decode_steps else None


def repeats(tokens: Sequence[int], size: int = GRAM) -> bool:
    """Whether some run of `size` tokens occurs twice."""
    grams = [tuple(tokens[start : start + size]) for start in range(len(tokens) - size + 1)]
    return len(set(grams)) < len(grams)


@dataclass(slots=True)
class Cell:
    """What one run, or several together, came to.

    fresh: of answers that never repeat themselves. seconds: from the first request to the last answer. steps: of the
    verify service, each for all requests in flight. waited: seconds in which its steps waited for trees. missed: trees
    that were not there at the deadline, for which a step went on plainly.
    """

    every: AnswerSums = field(default_factory=AnswerSums)
    fresh: AnswerSums = field(default_factory=AnswerSums)
    seconds: float = 0.0
    steps: int = 0
    waited: float = 0.0
    missed: int = 0

    @property
    def acceptance_length(self) -> float:
        """As of all answers, 1 where there was nothing to decode."""
        return self.every.acceptance_length or 1.0

    @property
    def tokens_a_second(self) -> float:
        """Of all requests in flight together."""
        return self.every.tokens / self.seconds if self.seconds else 0.0

    @property
    def draft_ms(self) -> float:
        """Milliseconds that a verify step waited for trees: drafting, and the way there and back."""
        return 1000 * self.waited / self.steps if self.steps else 0.0

    def add(self, other: Cell) -> None:
        """Take in another run's sums."""
        for mine, theirs in ((self.every, other.every), (self.fresh, other.fresh)):
            for name, value in asdict(theirs).items():
                setattr(mine, name, getattr(mine, name) + value)
        self.seconds += other.seconds
        self.steps += other.steps
        self.waited += other.waited
        self.missed += other.missed

    def to_json(self) -> dict[str, Any]:
        """Sums and what follows from them."""
        return {
            **asdict(self.every),
            "acceptance_length": self.every.acceptance_length,
            "fresh_acceptance_length": self.fresh.acceptance_length,
            "seconds": round(self.seconds, 4),
            "steps": self.steps,
            "missed": self.missed,
            "tokens_a_second": self.tokens_a_second,
            "draft_ms": self.draft_ms,
        }


class Counters(NamedTuple):
    """The verify service's, from its start."""

    steps: int
    waited: float
    missed: int


class Bench:
    """Running services and a client of them. Use within `services`."""

    def __init__(self, runner: Runner, metrics_url: str) -> None:
        self.runner = runner
        self._metrics_url = metrics_url
        self._tenants = count(1)

    async def measure(
        self,
        setting: Setting,
        prompts: Prompts,
        *,
        tokens: int,
        temperature: float,
        concurrency: int,
        done: Callable[[], object] = lambda: None,
    ) -> Cell:
        """Answer all prompts under a setting; `done` is called after each answer."""
        tenant = f"run-{next(self._tenants)}"
        jobs = [
            Job(
                ids,
                tokens,
                temperature=temperature,
                seed=SEED + index,
                proposer=setting.proposer,
                max_nodes=setting.max_nodes,
                max_depth=setting.max_depth,
                adaptive=setting.adaptive,
                tenant=tenant,
            )
            for index, ids in enumerate(prompts)
        ]
        computed = [replace(job, max_tokens=1, proposer="", adaptive=False) for job in jobs]
        await self.runner.run(computed, concurrency)
        before = self._counters()
        start = time.perf_counter()
        answers = await self.runner.run(jobs, concurrency, done)
        seconds = time.perf_counter() - start
        after = self._counters()
        cell = Cell(
            seconds=seconds,
            steps=after.steps - before.steps,
            waited=after.waited - before.waited,
            missed=after.missed - before.missed,
        )
        for answer in answers:
            cell.every.add(answer)
            if not repeats(answer.token_ids):
                cell.fresh.add(answer)
        return cell

    def _counters(self) -> Counters:
        with urllib.request.urlopen(self._metrics_url, timeout=_SCRAPE_SECONDS) as reply:  # noqa: S310 (our own service)
            text = reply.read().decode()
        samples = {
            sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples
        }
        return Counters(
            steps=int(samples["slipstream_steps_total"]),
            waited=samples["slipstream_draft_wait_seconds_sum"],
            missed=int(samples["slipstream_draft_misses_total"]),
        )


@asynccontextmanager
async def services(cluster: Callable[[tuple[str, ...]], Cluster]) -> AsyncIterator[Bench]:
    """Services that `cluster` makes, given arguments which the verify service must have."""
    (port,) = free_ports(1)
    with cluster(("--metrics-port", str(port))) as running:
        host = running.verify_address.rsplit(":", 1)[0]
        async with connect(running.gateway_grpc) as runner:
            yield Bench(runner, f"http://{host}:{port}/metrics")
