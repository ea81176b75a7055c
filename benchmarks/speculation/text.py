"""Real text on an inflated model with its inflated EAGLE-3 head: by category, and over growing concurrency."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from benchmarks.inflate.head import read_bytes
from benchmarks.inflate.shape import Shape
from benchmarks.local_engine.figures import Bytes, Figures
from benchmarks.local_engine.local_loop import Answer, EngineConfig, Job, LocalLoop
from benchmarks.local_engine.measured_model import MeasuredModel
from benchmarks.local_engine.speculative_loop import Drafters, plain_loop, speculative_loop
from benchmarks.speculation.rounds import PLAIN, TreeShape

BANDWIDTH = 4.8e12
"""Of an H200's memory, bytes a second, by its data sheet: what speculative bandwidth use is a share of."""
ALL = "all"


@dataclass(frozen=True, slots=True)
class TextSizes:
    """New tokens of an answer, fewer of them while trees are compared, and requests in flight."""

    tokens: int = 96
    trial_tokens: int = 48
    concurrency: tuple[int, ...] = (1, 4, 16, 64)
    answers_each: int = 2
    """Answers of the sweep for each request in flight."""

    def config(
        self, prompts: Sequence[tuple[int, ...]], rows: int, step_nodes: int, prefill_chunk: int
    ) -> EngineConfig:
        """A loop with room for all that is in flight, and for states of all of it."""
        longest, batch = max(map(len, prompts)) + self.tokens + 1, max(self.concurrency)
        return EngineConfig(
            num_pages=(batch + 8) * -(-longest // 16),
            page_size=16,
            max_running=batch,
            max_nodes=rows,
            step_nodes=step_nodes,
            prefill_chunk=prefill_chunk,
            max_context=longest,
            feature_bytes=4 << 30,
        )


@dataclass(slots=True)
class Timed:
    """Answers one after another: seconds and tokens of their rounds, the first token's not among them."""

    seconds: list[float] = field(default_factory=list)
    tokens: int = 0
    bare: int = 0
    """Rounds without a tree."""
    contexts: list[int] = field(default_factory=list)
    said: list[list[int]] = field(default_factory=list)

    def add(self, other: Timed) -> None:
        """Take in another run's."""
        self.seconds += other.seconds
        self.tokens += other.tokens
        self.bare += other.bare
        self.contexts += other.contexts
        self.said += other.said

    @property
    def speed(self) -> float:
        """Tokens a second."""
        return self.tokens / sum(self.seconds) if self.seconds else 0.0

    def figures(self, plain: Timed, model: Bytes, draft_bytes: int) -> Figures:
        """A row of the table by category. draft_bytes: what a tree's passes read, but for a token of context."""
        seconds = sorted(self.seconds)
        median = statistics.median(seconds)
        read = model.step(1, round(statistics.fmean(self.contexts))) + draft_bytes
        return {
            "answers": len(self.said),
            "acceptance": self.tokens / len(seconds),
            "rounds without a tree": self.bare / len(seconds),
            "round p50 ms": median * 1e3,
            "p90 ms": seconds[int(0.9 * (len(seconds) - 1))] * 1e3,
            "tokens/s": self.speed,
            "plain tokens/s": plain.speed,
            "x plain": self.speed / plain.speed if plain.speed else None,
            "bandwidth use %": 100 * read / median / BANDWIDTH,
            "equal answers": sum(mine == theirs for mine, theirs in zip(self.said, plain.said, strict=False)),
        }


Categories = dict[str, list[tuple[int, ...]]]
"""Prompts by category."""


class Text:
    """Measures one model and head. Every method yields rows as they are measured."""

    def __init__(
        self, model: MeasuredModel, config: EngineConfig, sizes: TextSizes, categories: Categories, shape: Shape
    ) -> None:
        self._model, self._config, self._sizes = model, config, sizes
        self._categories, self._shape = categories, shape
        self._read = Bytes.of(model.config)
        self._plain: dict[str, Timed] = {}
        self._prompts = [prompt for prompts in categories.values() for prompt in prompts]
        self.chosen: tuple[str, int] = ("", 0)
        """The drafter of the best trees, and their rows."""

    def plain(self) -> Iterator[Figures]:
        """Without drafters: each category, then all together at growing concurrency."""
        with plain_loop(self._model, self._config) as loop:
            for category, prompts in self._categories.items():
                self._plain[category] = self._timed(loop, prompts, self._sizes.tokens)
            for concurrency in self._sizes.concurrency:
                yield self._sweep(loop, concurrency, "off")

    def speculative(
        self, drafters: Drafters, shapes: dict[str, TreeShape], rows: Sequence[int], states: int, entries: int
    ) -> Iterator[tuple[str, Figures]]:
        """Rows of the tables `trees`, `categories` and `concurrency`. After `plain`.

        drafters: with a proposer for each of `shapes`. rows: budgets to try below a shape's own. states, entries: of
        the head.
        """
        with speculative_loop(self._model, self._config, drafters) as measured:
            loop = measured.loop
            for prompts in self._categories.values():  # so that no tree is the first to meet a prompt
                self._timed(loop, prompts, 2, next(iter(shapes)))
            best = 0.0
            for name, shape in shapes.items():
                for budget in sorted({shape.rows, *(each for each in rows if shape.steps + 1 < each < shape.rows)}):
                    timed = Timed()
                    for prompts in self._categories.values():
                        timed.add(self._timed(loop, prompts, self._sizes.trial_tokens, name, budget))
                    yield "trees", {"drafter": name, "rows": budget, **_short(timed)}
                    if timed.speed > best:
                        best, self.chosen = timed.speed, (name, budget)
            name, budget = self.chosen
            every, plainly = Timed(), Timed()
            for category, prompts in self._categories.items():
                timed = self._timed(loop, prompts, self._sizes.tokens, name, budget)
                figures = self._figures(timed, self._plain[category], shapes[name], states, entries)
                yield "categories", {"category": category, **figures}
                every.add(timed)
                plainly.add(self._plain[category])
            figures = self._figures(every, plainly, shapes[name], states, entries)
            yield "categories", {"category": ALL, **figures}
            measured.link.chosen = name
            for concurrency in self._sizes.concurrency:
                yield "concurrency", self._sweep(loop, concurrency, "on", adaptive=True)

    def _figures(self, timed: Timed, plain: Timed, shape: TreeShape, states: int, entries: int) -> Figures:
        context = round(statistics.fmean(timed.contexts))
        draft = read_bytes(self._shape, states=states, entries=entries, passes=shape.steps, context=context)
        return timed.figures(plain, self._read, draft)

    def _timed(
        self, loop: LocalLoop, prompts: Sequence[tuple[int, ...]], tokens: int, proposer: str = "", rows: int = 0
    ) -> Timed:
        """One request after the other."""
        timed = Timed()
        for prompt in prompts:
            job = Job(prompt, tokens, proposer=proposer, rows=rows or None, to_the_end=True)
            (answer,) = loop.run([job], 1)
            for before, arrival in pairwise(each for each in loop.arrivals if each.tokens):
                timed.seconds.append(arrival.at - before.at)
                timed.tokens += arrival.tokens
                timed.bare += not arrival.drafted
            timed.contexts.append(len(prompt) + len(answer.token_ids) // 2)
            timed.said.append(answer.token_ids)
        return timed

    def _sweep(self, loop: LocalLoop, concurrency: int, speculation: str, *, adaptive: bool = False) -> Figures:
        count = max(4, self._sizes.answers_each * concurrency)
        prompts = (self._prompts * -(-count // len(self._prompts)))[:count]
        jobs = [Job(prompt, self._sizes.tokens, adaptive=adaptive, to_the_end=True) for prompt in prompts]
        loop.run(jobs, concurrency)  # passes of sizes that are new to the loop take their time
        begun = time.perf_counter()
        answers = loop.run(jobs, concurrency)
        seconds = time.perf_counter() - begun
        paces = sorted(_pace(answer) for answer in answers if len(answer.token_ids) > 1)
        steps = sum(answer.usage.verify_steps - 1 for answer in answers if answer.usage)
        return {
            "concurrency": concurrency,
            "speculation": speculation,
            "answers": len(answers),
            "TPOT p50 ms": statistics.median(paces) * 1e3,
            "TPOT p90 ms": paces[int(0.9 * (len(paces) - 1))] * 1e3,
            "tokens/s": sum(len(answer.token_ids) for answer in answers) / seconds,
            "acceptance": sum(len(answer.token_ids) - 1 for answer in answers) / max(steps, 1),
        }


def _pace(answer: Answer) -> float:
    """Seconds a token after the first."""
    return (answer.last - answer.first) / (len(answer.token_ids) - 1)


def _short(timed: Timed) -> Figures:
    row: Figures = {"acceptance": timed.tokens / max(1, len(timed.seconds))}
    return row | {"round p50 ms": statistics.median(timed.seconds) * 1e3, "tokens/s": timed.speed}


def drafters_of(head: str, shapes: dict[str, TreeShape], drafters: Drafters) -> Drafters:
    """The head in `head` with trees of every shape, run where `drafters` are."""
    factory = "draft_service.proposers.eagle.eagle3:create"
    specs = {name: f"{factory}:{head}:{shape.arguments}" for name, shape in shapes.items()}
    return Drafters(specs, drafters.place, drafters.device, drafters.deadline)


__all__ = ["ALL", "PLAIN", "Categories", "Text", "TextSizes", "drafters_of"]
