"""Runs cases through verify loops under every setting and compares each answer with a plain reference."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from queue import SimpleQueue
from random import Random
from threading import Lock
from typing import Any

from benchmarks.gpu_exactness.cells import (
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
from benchmarks.local_engine.local_loop import Answer, EngineConfig, Job, LocalLoop, local_loop
from benchmarks.local_engine.synthetic_trees import OracleTrees, RandomTrees, TreesByName

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
    Every model is prepared for it; they are the same but for what they keep of requests, and share out the settings:
    while one's loop works on the host, the others' passes run.
    """

    def __init__(self, models: Sequence[Any], config: EngineConfig, cases: Sequence[Case], tokens: int) -> None:
        self._models = list(models)
        self._config = config
        self.cases = list(cases)
        self._tokens = tokens
        self._references: dict[tuple[Case, float], Answer] = {}
        self._lock = Lock()
        self.results: Results = {}

    def reference(self, case: Case, temperature: float) -> list[int]:
        """The reference's tokens."""
        return self._references[case, temperature].token_ids

    def refer(self) -> float:
        """Reference answers: one plain request at a time, prompts whole, no prefix cache. Returns the seconds."""
        begun = time.perf_counter()
        shares = [self.cases[index :: len(self._models)] for index in range(len(self._models))]
        with ThreadPoolExecutor(len(self._models)) as pool:
            for answers in pool.map(self._refer, self._models, shares):
                self._references |= answers
        return time.perf_counter() - begun

    def run(self, settings: Sequence[Setting], parts: Sequence[Part], done: Callable[[Cell, Count], None]) -> None:
        """Every part under every setting, proposer and temperature, then all of these in one batch.

        `done` is told of each cell, by one thread at a time.
        """
        idle: SimpleQueue[Any] = SimpleQueue()
        for model in self._models:
            idle.put(model)

        def told(cell: Cell, count: Count) -> None:
            with self._lock:
                done(cell, count)

        def share(setting: Setting) -> Results:
            model = idle.get()
            try:
                return self._run_setting(model, setting, parts, told)
            finally:
                idle.put(model)

        with ThreadPoolExecutor(len(self._models)) as pool:
            for results in pool.map(share, settings):
                self.results |= results

    def _refer(self, model: Any, cases: Sequence[Case]) -> dict[tuple[Case, float], Answer]:
        references: dict[tuple[Case, float], Answer] = {}
        with local_loop(model, replace(self._config, prefix_cache=False)) as loop:
            for temperature in TEMPERATURES:
                jobs = [case.job(PLAIN, temperature, self._tokens) for case in cases]
                for case, answer in zip(cases, loop.run(jobs, 1), strict=True):
                    references[case, temperature] = answer
        return references

    def _run_setting(
        self, model: Any, setting: Setting, parts: Sequence[Part], done: Callable[[Cell, Count], None]
    ) -> Results:
        results: Results = {}
        config = replace(
            self._config,
            prefill_chunk=setting.chunk or self._config.prefill_chunk,
            prefix_cache=setting.cached,
        )
        largest = max(part.batch for part in parts)
        with local_loop(model, config, self._trees(model)) as loop:
            if setting.cached:
                loop.run([case.job(PLAIN, 0.0, 1) for case in self.cases], largest)
            for part in parts:
                for proposer in PROPOSERS:
                    for temperature in TEMPERATURES:
                        cell = Cell(setting, part.batch, proposer, temperature)
                        pairs = [(case, temperature, proposer) for case in self.cases[: part.cases]]
                        results[cell] = self._compare(loop, cell, pairs)
                        done(cell, results[cell])
            cell = Cell(setting, largest, MIXED, None)
            results[cell] = self._compare(loop, cell, self._mixture())
            done(cell, results[cell])
        return results

    def _compare(self, loop: LocalLoop, cell: Cell, requests: Sequence[tuple[Case, float, str]]) -> Count:
        count = Count()
        jobs: list[Job] = [case.job(proposer, temperature, self._tokens) for case, temperature, proposer in requests]
        begun = time.perf_counter()
        answers = loop.run(jobs, cell.batch)
        count.seconds = time.perf_counter() - begun
        for (case, temperature, _), answer in zip(requests, answers, strict=True):
            count.add(case.name, answer, self._references[case, temperature])
        return count

    def _mixture(self) -> list[tuple[Case, float, str]]:
        mixture = [
            (case, temperature, proposer)
            for case in self.cases[:MIXED_CASES]
            for temperature in TEMPERATURES
            for proposer in PROPOSERS
        ]
        Random(SEED).shuffle(mixture)
        return mixture

    def _trees(self, model: Any) -> TreesByName:
        vocabulary = model.config.vocab_size
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
