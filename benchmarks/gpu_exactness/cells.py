"""What the exactness run in one process compares: settings, cells of requests, and what a comparison counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any

from benchmarks.local_engine.local_loop import Answer, Job

PLAIN, RANDOM, ORACLE, MIXED = "plain", "random", "oracle", "mixed"
PROPOSERS = (PLAIN, RANDOM, ORACLE)
TEMPERATURES = (0.0, 0.8)
WHOLE = 0
"""As a prefill chunk: a whole prompt in one step."""
DIFFERENCES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Setting:
    """How a loop computes prompts: in chunks of so many tokens, and from the prefix cache or at once."""

    chunk: int
    cached: bool

    @property
    def name(self) -> str:
        return f"chunk {self.chunk or 'whole'}, {'from the cache' if self.cached else 'at once'}"


@dataclass(frozen=True, slots=True)
class Cell:
    """Requests of one proposer and temperature, `batch` of them at a time. `mixed`: of all of them together."""

    setting: Setting
    batch: int
    proposer: str
    temperature: float | None

    @property
    def name(self) -> str:
        temperature = "" if self.temperature is None else f"; T={self.temperature:g}"
        return f"{self.setting.name}; batch {self.batch}; {self.proposer}{temperature}"


@dataclass(frozen=True, slots=True)
class Case:
    """One prompt with its noise. Logprobs are asked for, and compared, where `logprobs` is not None."""

    name: str
    prompt: tuple[int, ...]
    seed: int
    logprobs: int | None

    def job(self, proposer: str, temperature: float, tokens: int) -> Job:
        """The request of this case."""
        return Job(
            self.prompt,
            tokens,
            temperature=temperature,
            seed=self.seed,
            proposer="" if proposer == PLAIN else proposer,
            logprobs=self.logprobs,
        )


@dataclass(slots=True)
class Count:
    """Sums over requests. `from_cache` counts prompt tokens that the prefix cache held."""

    requests: int = 0
    tokens: int = 0
    mismatches: int = 0
    rows_compared: int = 0
    """Positions whose logprobs, or whole rows of logits, were compared."""
    row_mismatches: int = 0
    drafted: int = 0
    accepted: int = 0
    steps: int = 0
    from_cache: int = 0
    seconds: float = 0.0
    differences: list[str] = field(default_factory=list)

    def add(self, name: str, answer: Answer, reference: Answer) -> None:
        """Compare one answer with the reference, bit for bit."""
        assert answer.usage is not None
        self.requests += 1
        self.tokens += len(answer.token_ids)
        self.drafted += answer.usage.drafted_tokens
        self.accepted += answer.usage.accepted_tokens
        self.steps += answer.usage.verify_steps
        self.from_cache += answer.usage.cached_tokens
        same = answer.token_ids == reference.token_ids
        self.mismatches += not same
        if not same:
            where = next((i for i, (a, b) in enumerate(zip(answer.token_ids, reference.token_ids)) if a != b), -1)  # noqa: B905 - lengths may differ
            self._note(f"prompt {name}: tokens differ from output position {where} on")
        self.rows_compared += len(reference.logprobs)
        rows = max(len(answer.logprobs), len(reference.logprobs))
        equal = sum(a == b for a, b in zip(answer.logprobs, reference.logprobs, strict=False))
        self.row_mismatches += rows - equal
        if same and rows != equal:
            self._note(f"prompt {name}: {rows - equal} of {rows} rows differ")

    def merge(self, other: Count) -> None:
        """Add another count to this one."""
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)
        del self.differences[DIFFERENCES_SHOWN:]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "seconds": round(self.seconds, 2)}

    def _note(self, difference: str) -> None:
        if len(self.differences) < DIFFERENCES_SHOWN:
            self.differences.append(difference)


Results = dict[Cell, Count]


def settings(chunks: Sequence[int]) -> list[Setting]:
    """Every chunk, computed at once and continued from the cache."""
    return [Setting(*each) for each in product(chunks, (False, True))]


def totals(results: Results, key: str) -> dict[str, Count]:
    """Counts summed over all cells that share the attribute `key`."""
    sums: dict[str, Count] = {}
    for cell, count in results.items():
        value = getattr(cell, key)
        name = value.name if isinstance(value, Setting) else f"{key} {value}"
        sums.setdefault(name, Count()).merge(count)
    return sums


def failures(results: Results) -> list[str]:
    """What keeps the results from showing exactness, in words."""
    found: list[str] = []
    for cell, count in results.items():
        if count.mismatches or count.row_mismatches:
            found.append(
                f"{cell.name}: {count.mismatches} mismatches, {count.row_mismatches} of rows: "
                f"{'; '.join(count.differences)}"
            )
        if cell.proposer == RANDOM and not count.drafted:
            found.append(f"{cell.name}: nothing was drafted")
        if cell.proposer in (ORACLE, MIXED) and not count.accepted:
            found.append(f"{cell.name}: nothing was accepted")
        if cell.setting.cached and not count.from_cache:
            found.append(f"{cell.name}: nothing came from the cache")
        if not cell.setting.cached and count.from_cache:
            found.append(f"{cell.name}: {count.from_cache} tokens came from a cache that is off")
    return found


HEADER = ("cells", "requests", "tokens", "mismatches", "rows compared", "row mismatches", "drafted", "accepted",
          "tokens a step", "from cache", "s")  # fmt: skip


def rows(counts: Iterable[tuple[str, Count]]) -> list[list[object]]:
    """Table rows under `HEADER`."""
    return [
        [name, c.requests, c.tokens, c.mismatches, c.rows_compared, c.row_mismatches, c.drafted, c.accepted,
         c.tokens / max(c.steps, 1), c.from_cache, c.seconds]
        for name, c in counts
    ]  # fmt: skip
