"""Runs cases through verify loops under every setting and compares each answer with a plain reference."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from benchmarks.engine_loop import Answer, EngineConfig, Job, LocalLoop, local_loop
from benchmarks.engine_trees import OracleTrees, RandomTrees, TreesByName
from benchmarks.gpu_exactness_cells import (
    MIXED,
    ORACLE,
    PLAIN,
    PROPOSERS,
    RANDOM,
    TEMPERATURES,
    Case,
    Cell,
    Count,
    Results,
    Setting,
)

SEED = 31
MIXED_CASES = 64
"""Cases of the cell in which all proposers and temperatures share every batch."""


@dataclass(frozen=True, slots=True)
class Part:
    """The first `cases` cases, `batch` requests at a time."""

    batch: int
    cases: int


class ExactnessRun:
    """Cases, their reference answers, and the results so far.

    `config` is a loop as large as any setting needs: its pages hold all cases, its prefill chunk the longest prompt.
    """

    def __init__(self, model: Any, config: EngineConfig, cases: Sequence[Case], tokens: int) -> None:
        self._model = model
        self._config = config
        self._cases = list(cases)
        self._tokens = tokens
        self._references: dict[tuple[Case, float], Answer] = {}
        self.results: Results = {}

    def refer(self) -> float:
        """Reference answers: one plain request at a time, prompts whole, no prefix cache. Returns the seconds."""
        begun = time.perf_counter()
        with local_loop(self._model, replace(self._config, prefix_cache=False)) as loop:
            for temperature in TEMPERATURES:
                jobs = [case.job(PLAIN, temperature, self._tokens) for case in self._cases]
                for case, answer in zip(self._cases, loop.run(jobs, 1), strict=True):
                    self._references[case, temperature] = answer
        return time.perf_counter() - begun

    def run(self, settings: Sequence[Setting], parts: Sequence[Part], done: Callable[[Cell, Count], None]) -> None:
        """Every part under every setting, proposer and temperature, then all of these in one batch."""
        for setting in settings:
            config = replace(
                self._config,
                prefill_chunk=setting.chunk or self._config.prefill_chunk,
                prefix_cache=setting.cached,
            )
            with local_loop(self._model, config, self._trees()) as loop:
                if setting.cached:
                    loop.run([case.job(PLAIN, 0.0, 1) for case in self._cases], parts[0].batch)
                for part in parts:
                    for proposer in PROPOSERS:
                        for temperature in TEMPERATURES:
                            cell = Cell(setting, part.batch, proposer, temperature)
                            pairs = [(case, temperature, proposer) for case in self._cases[: part.cases]]
                            done(cell, self._compare(loop, cell, pairs))
                cell = Cell(setting, max(part.batch for part in parts), MIXED, None)
                done(cell, self._compare(loop, cell, self._mixture()))

    def _compare(self, loop: LocalLoop, cell: Cell, requests: Sequence[tuple[Case, float, str]]) -> Count:
        count = Count()
        jobs: list[Job] = [case.job(proposer, temperature, self._tokens) for case, temperature, proposer in requests]
        begun = time.perf_counter()
        answers = loop.run(jobs, cell.batch)
        count.seconds = time.perf_counter() - begun
        for (case, temperature, _), answer in zip(requests, answers, strict=True):
            count.add(case.name, answer, self._references[case, temperature])
        self.results[cell] = count
        return count

    def _mixture(self) -> list[tuple[Case, float, str]]:
        mixture = [
            (case, temperature, proposer)
            for case in self._cases[:MIXED_CASES]
            for temperature in TEMPERATURES
            for proposer in PROPOSERS
        ]
        Random(SEED).shuffle(mixture)
        return mixture

    def _trees(self) -> TreesByName:
        vocabulary = self._model.config.vocab_size
        truths = {
            (case.prompt, temperature, case.seed): tuple(answer.token_ids)
            for (case, temperature), answer in self._references.items()
        }
        return TreesByName(
            {
                RANDOM: RandomTrees(vocabulary, max_rows=self._config.max_nodes, seed=SEED),
                ORACLE: OracleTrees(vocabulary, truths, seed=SEED),
            }
        )
