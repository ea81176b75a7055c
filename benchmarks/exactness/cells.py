"""The matrix of the exactness run: which settings are compared, and what a comparison counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, Self

from benchmarks.lib.runner import Answer

PLAIN = "none"
PROPOSERS = (PLAIN, "ngram", "draft-model", "random-tree", "oracle")
DIFFERENCES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Axes:
    """What is combined under every engine setting."""

    proposers: tuple[str, ...] = PROPOSERS
    temperatures: tuple[float, ...] = (0.0, 0.8)
    concurrencies: tuple[int, ...] = (1, 8)
    crossed: tuple[int, ...] = (1, 8)
    """Concurrencies under every engine setting but the usual one."""


@dataclass(frozen=True, slots=True)
class EngineSetting:
    """How a verify service computes, none of which may show in its tokens."""

    prefill_chunk: int = 256
    page_size: int = 16
    prefix_cache: bool = True
    scarce: bool = False
    """Too few pages for the requests in flight, which forces preemption."""

    @property
    def name(self) -> str:
        cache = "cache" if self.prefix_cache else "no-cache"
        return f"chunk {self.prefill_chunk}, page {self.page_size}, {cache}{', preempted' if self.scarce else ''}"

    def verify_args(self, num_pages: int) -> tuple[str, ...]:
        """Command-line arguments of the verify service."""
        return (
            *("--prefill-chunk", str(self.prefill_chunk), "--page-size", str(self.page_size)),
            *("--num-pages", str(num_pages), "--prefix-cache" if self.prefix_cache else "--no-prefix-cache"),
        )


@dataclass(frozen=True, slots=True)
class Cell:
    """One row of the report: the requests of one proposer, temperature and concurrency under one engine setting."""

    engine: EngineSetting
    proposer: str
    temperature: float
    concurrency: int

    @property
    def name(self) -> str:
        return f"{self.engine.name}; {self.proposer}; T={self.temperature:g}; concurrency {self.concurrency}"


@dataclass(slots=True)
class Count:
    """What comparing a cell's answers with the reference yielded."""

    requests: int = 0
    tokens: int = 0
    mismatches: int = 0
    """Answers whose token ids differ from the reference."""
    logprobs_compared: int = 0
    logprob_mismatches: int = 0
    drafted: int = 0
    accepted: int = 0
    decoded: int = 0
    decode_steps: int = 0
    differences: list[str] | None = None

    @property
    def acceptance_length(self) -> float:
        """Tokens a verify step yielded, bonus included; steps that ended a prompt are not counted."""
        return self.decoded / self.decode_steps if self.decode_steps else 0.0

    def add(self, name: str, answer: Answer, reference: Answer) -> None:
        """Compare one answer, bit for bit."""
        self.requests += 1
        self.tokens += len(answer.token_ids)
        self.drafted += answer.drafted
        self.accepted += answer.accepted
        self.decoded += answer.decoded
        self.decode_steps += answer.decode_steps
        same = answer.token_ids == reference.token_ids and answer.finish_reason == reference.finish_reason
        self.mismatches += not same
        if answer.logprobs or reference.logprobs:
            self.logprobs_compared += 1
            self.logprob_mismatches += answer.logprobs != reference.logprobs
        if not same:
            self.differences = [*(self.differences or []), _difference(name, answer, reference)][:DIFFERENCES_SHOWN]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "acceptance_length": round(self.acceptance_length, 3)}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        return cls(**{key: value for key, value in content.items() if key != "acceptance_length"})


def _difference(name: str, answer: Answer, reference: Answer) -> str:
    pairs = enumerate(zip(answer.token_ids, reference.token_ids, strict=False))
    position = next(
        (i for i, (got, wanted) in pairs if got != wanted), min(len(answer.token_ids), len(reference.token_ids))
    )
    lengths = f"{len(answer.token_ids)} tokens, reference {len(reference.token_ids)}"
    return f"prompt {name}, output position {position}: {lengths}"


def combinations(engine: EngineSetting, axes: Axes, *, crossed: bool = False) -> list[Cell]:
    """Proposer x temperature x concurrency under one engine setting."""
    concurrencies = axes.crossed if crossed else axes.concurrencies
    return [Cell(engine, *each) for each in product(axes.proposers, axes.temperatures, concurrencies)]


def cross_settings(*, quick: bool) -> list[EngineSetting]:
    """Prefill chunk x page size x prefix cache x preemption; `quick` keeps the half of even index sums."""
    axes: tuple[tuple[Any, ...], ...] = ((16, 512), (1, 16, 64), (True, False), (False, True))
    chosen = (index for index in product(*(range(len(axis)) for axis in axes)) if not quick or sum(index) % 2 == 0)
    return [EngineSetting(*(axis[i] for axis, i in zip(axes, index, strict=True))) for index in chosen]


def total(counts: Iterable[Count]) -> Count:
    """The sum of several counts."""
    result = Count()
    for count in counts:
        result.requests += count.requests
        result.tokens += count.tokens
        result.mismatches += count.mismatches
        result.logprobs_compared += count.logprobs_compared
        result.logprob_mismatches += count.logprob_mismatches
        result.drafted += count.drafted
        result.accepted += count.accepted
        result.decoded += count.decoded
        result.decode_steps += count.decode_steps
    return result


def rows(results: Sequence[tuple[str, Count]]) -> list[list[object]]:
    """Table rows: name, requests, mismatches, and beside them what was drafted and accepted."""
    return [
        [
            *(name, c.requests, c.tokens, c.mismatches, c.logprob_mismatches if c.logprobs_compared else None),
            *(c.drafted, c.accepted, c.acceptance_length),
        ]
        for name, c in results
    ]


HEADER = ("cell", "requests", "tokens", "mismatches", "logprob mismatches", "drafted", "accepted", "tokens a step")
