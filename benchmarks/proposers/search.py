"""Finds the settings that serve a model and its prompts best: a grid, thinned out while it is measured.

All candidates answer a few prompts, each in its turn. The better third goes on to three times as many, until three are
left (successive halving: Jamieson and Talwalkar, arXiv 1502.07943). Plain decoding is always among them, and so is the
operator's default with the node budget in charge.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from benchmarks.proposers.runs import PLAIN, Bench, Cell, Prompts, Setting

ETA = 3
FINALISTS = 3
NO_DRAFT = "--draft none"
GROWING = {
    "draft-model": "draft_service.proposers.draft_model:create",
    "eagle": "draft_service.proposers.eagle:create",
    "eagle3": "draft_service.proposers.eagle.eagle3:create",
    "medusa": "draft_service.proposers.last_hidden_state.medusa:create",
    "mlp-speculator": "draft_service.proposers.last_hidden_state.mlp_speculator:create",
    "mtp": "draft_service.proposers.eagle.mtp:create",
}
"""Proposers whose trees have a number of children a node, which no request sets: each is hosted once for each."""
HYBRID = "hybrid"
LIMITED = ("ngram", "suffix")
"""Proposers whose own limits are raised, so that requests may ask for larger trees."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Numbers to try: longest paths in tokens, children a node, rows of a tree with the root."""

    steps: tuple[int, ...]
    topk: tuple[int, ...]
    rows: tuple[int, ...]

    def trees(self, children: int) -> list[tuple[int, int]]:
        """Steps and rows of the trees that can be drafted: chains have one shape, others must have room to branch."""
        if children == 1:
            return [(steps, steps + 1) for steps in self.steps]
        return [
            (steps, rows)
            for steps, rows in product(self.steps, self.rows)
            if steps + 1 < rows <= 1 + children + (steps - 1) * children**2
        ]


@dataclass(slots=True)
class Candidate:
    """A setting, what to start the services with for it, and what it has come to so far."""

    setting: Setting
    arguments: str
    cell: Cell = field(default_factory=Cell)
    rounds: int = 0


def candidates(specs: Sequence[str], grid: Grid) -> tuple[list[str], list[Candidate]]:
    """What the draft service is to host, and all candidates. `specs` leave open what is searched for."""
    specs = [_with_members(spec, specs) for spec in specs]
    own = [spec + _largest(_name(spec), grid) for spec in specs]
    hosted = list(own)
    found = [Candidate(PLAIN, NO_DRAFT), Candidate(Setting("adaptive", adaptive=True), f"--draft '{own[0]}'")]
    for spec in specs:
        name, argument = _name(spec), spec.partition(":")[2]
        if name in GROWING and "=" not in spec.partition(":")[0]:
            for children in grid.topk:
                if grid.trees(children):
                    proposer = f"{name}-topk{children}"
                    hosted.append(f"{proposer}={GROWING[name]}:{argument}{_largest(name, grid, children)}")
                    found += _grown(spec, proposer, children, grid)
        else:
            found += _limited(spec, own, grid)
    return hosted, found


def _grown(spec: str, proposer: str, children: int, grid: Grid) -> list[Candidate]:
    """Trees of one number of children a node."""
    return [
        _fixed(
            Setting(f"{_name(spec)}, {steps} steps, top-k {children}, {rows} rows", proposer, rows, steps),
            [spec + _sizes(steps, rows, children)],
        )
        for steps, rows in grid.trees(children)
    ]


def _limited(spec: str, own: Sequence[str], grid: Grid) -> list[Candidate]:
    """Trees of a proposer that fills the rows as it likes; a hybrid comes with its members, `own` in full."""
    name, found = _name(spec), []
    known = "=" not in spec.partition(":")[0]
    members = spec.split(":")[1].split("+") if name == HYBRID and known else []
    others = [each for each in own if _name(each) in members]
    for rows in grid.rows:
        sizes = _sizes(rows - 1, rows) if known else ""
        found.append(_fixed(Setting(f"{name}, {rows} rows", name, rows), [spec + sizes, *others]))
    return found


def _name(spec: str) -> str:
    return re.split("[:=]", spec)[0]


def _largest(name: str, grid: Grid, children: int | None = None) -> str:
    """Parameters with which a proposer draws the largest trees that are tried, of so many children a node."""
    if name in LIMITED:
        return _sizes(max(grid.rows) - 1, max(grid.rows))
    children = children or max(grid.topk)
    trees = grid.trees(children)
    if name not in GROWING or not trees:
        return ""
    return _sizes(max(steps for steps, _ in trees), max(rows for _, rows in trees), children)


def _with_members(spec: str, specs: Sequence[str]) -> str:
    """A hybrid of all others names them, since a search hosts some of them more than once."""
    name, _, argument = spec.partition(":")
    if name != HYBRID or (argument and "=" not in argument.partition(":")[0]):
        return spec
    members = "+".join(other for each in specs if (other := _name(each)) != HYBRID)
    return f"{name}:{members}" + (f":{argument}" if argument else "")


def _sizes(steps: int, rows: int, children: int | None = None) -> str:
    return f":num_steps={steps}:num_draft_tokens={rows}" + (f":topk={children}" if children else "")


def _fixed(setting: Setting, specs: Sequence[str]) -> Candidate:
    """A candidate whose trees are as large as `specs` say, whatever the node budget would grant."""
    return Candidate(setting, " ".join([*(f"--draft '{spec}'" for spec in specs), "--verify-arg=--no-adaptive"]))


class Search:
    """One search. `objective`: "speed" or "acceptance"."""

    def __init__(self, bench: Bench, objective: str, tokens: int, temperature: float, concurrency: int) -> None:
        self._bench = bench
        self._objective = objective
        self._tokens = tokens
        self._temperature = temperature
        self._concurrency = concurrency
        self._candidates: list[Candidate] = []

    async def run(
        self, possible: Sequence[Candidate], prompts: Prompts, *, seconds: float, done: Callable[[], object]
    ) -> None:
        """Measure round after round, until three candidates, no prompts or no seconds are left."""
        end = time.monotonic() + seconds
        self._candidates = running = list(possible)
        begin, size = 0, max(self._concurrency, 4)
        while begin < len(prompts) and running:
            for start in range(begin, min(begin + size, len(prompts)), max(self._concurrency, 4)):
                turn = prompts[start : start + max(self._concurrency, 4)]
                for candidate in running:
                    candidate.cell.add(await self._measure(candidate, turn, done))
                    if time.monotonic() > end:
                        return
            for candidate in running:
                candidate.rounds += 1
            if len(running) <= FINALISTS:
                return
            begin, size = begin + size, size * ETA
            ranked = sorted(running, key=self._merit, reverse=True)[: max(FINALISTS, -(-len(running) // ETA))]
            running = [each for each in running if each in ranked or each.setting == PLAIN]

    async def _measure(self, candidate: Candidate, prompts: Prompts, done: Callable[[], object]) -> Cell:
        return await self._bench.measure(
            candidate.setting,
            prompts,
            tokens=self._tokens,
            temperature=self._temperature,
            concurrency=self._concurrency,
            done=done,
        )

    def _merit(self, candidate: Candidate) -> float:
        cell = candidate.cell
        return cell.tokens_a_second if self._objective == "speed" else cell.acceptance_length

    def _ranked(self) -> list[Candidate]:
        """Those that lasted longest first, better ones before others."""
        return sorted(self._candidates, key=lambda each: (each.rounds, self._merit(each)), reverse=True)

    def table(self) -> list[dict[str, Any]]:
        """Figures of every candidate."""
        plain = next(each.cell for each in self._candidates if each.setting == PLAIN)
        return [
            {
                "setting": each.setting.name,
                "proposer": each.setting.proposer or ("adaptive" if each.setting.adaptive else ""),
                "rounds": each.rounds,
                "against_plain": each.cell.tokens_a_second / (plain.tokens_a_second or 1.0),
                "arguments": each.arguments,
            }
            | each.cell.to_json()
            for each in self._ranked()
        ]

    def best(self) -> dict[str, str]:
        """What to start the services with, for the objective, and for the other one among those that lasted as long."""
        ranked = self._ranked()
        last = [each for each in ranked if each.rounds == ranked[0].rounds]
        fast = max(last, key=lambda each: each.cell.tokens_a_second)
        long = max(last, key=lambda each: each.cell.acceptance_length)
        return {"most tokens a second": fast.arguments, "longest acceptance": long.arguments}
