"""The measurements of the engine benchmark, all through a verify loop: plain steps, batches, trees, prompts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.local_engine.figures import Bytes, Figures, drafted_figures, steps_figures
from benchmarks.local_engine.local_loop import EngineConfig, Job, LocalLoop
from benchmarks.local_engine.measured_model import MeasuredModel, PassTimes
from benchmarks.local_engine.prompt_tokens import random_token_ids
from benchmarks.local_engine.synthetic_trees import SizedTrees

DRAFTED = "sized"
"""The proposer that requests of verify measurements name."""
PAGE_SIZE = 16
ENDLESS = 1024
"""New tokens of a request that is cancelled before it has them."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is measured: contexts and prompts in tokens, trees in rows with their root, batches in requests."""

    contexts: tuple[int, ...] = (128, 1024, 2048, 8192, 32768)
    batches: tuple[int, ...] = (1, 4, 16, 64, 256)
    batch_context: int = 1024
    rows: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    verify_batches: tuple[int, ...] = (1, 4, 16, 64)
    device: tuple[tuple[int, int], ...] = ((1, 1), (16, 1), (64, 1), (1, 16), (1, 64))
    """(batch, rows) that are looked at from the device's side."""
    prompts: tuple[int, ...] = (512, 1024, 2048, 4096, 8192, 16384)
    steps: int = 100
    prompt_rounds: int = 5

    def config(self, sections: Sequence[str], prefill_chunk: int) -> EngineConfig:
        """A loop with room for what these sections measure."""
        contexts, batches, trees = [self.batch_context], [1], [(1, 2)]
        if "plain" in sections:
            contexts += self.contexts
        if "prefill" in sections:
            contexts += self.prompts
        if "batch" in sections:
            batches += self.batches
        if "verify" in sections:
            trees += [(batch, max(self.rows)) for batch in self.verify_batches]
        if "device" in sections:
            trees += self.device
        batches += [batch for batch, _ in trees]
        longest = max(contexts) + ENDLESS + 1
        tokens = max(longest, max(batches) * (self.batch_context + ENDLESS // 2))
        return EngineConfig(
            num_pages=-(-tokens // PAGE_SIZE) + max(batches),
            page_size=PAGE_SIZE,
            max_running=max(batches),
            max_nodes=max(rows for _, rows in trees),
            step_nodes=max(batch * (rows - 1) for batch, rows in trees),
            prefill_chunk=prefill_chunk,
            max_context=longest,
        )


class Sections:
    """Measures on one loop, whose tree source is `trees`. Every method yields rows as they are measured."""

    def __init__(self, model: MeasuredModel, loop: LocalLoop, trees: SizedTrees, sizes: Sizes) -> None:
        self._model = model
        self._loop = loop
        self._trees = trees
        self._vocab_size = model.config.vocab_size
        self._read = Bytes.of(model.config)
        self._sizes = sizes
        self._seed = 0

    def plain(self) -> Iterator[Figures]:
        """One request, growing contexts."""
        for context in self._sizes.contexts:
            yield {"context": context, "batch": 1, **self._plain(1, context)}

    def batch(self) -> Iterator[Figures]:
        """Growing batches."""
        context = self._sizes.batch_context
        for batch in self._sizes.batches:
            yield {"context": context, "batch": batch, **self._plain(batch, context)}

    def verify(self) -> Iterator[Figures]:
        """Every request with a tree of so many rows, hardly any of which is accepted."""
        context = self._sizes.batch_context
        for batch in self._sizes.verify_batches:
            with self._loop.decoding(self._jobs(batch, context, DRAFTED)):
                for rows in self._sizes.rows:
                    self._trees.resize(rows)
                    steps = max(8, self._sizes.steps // (1 + batch * rows // 256))
                    arrivals = self._loop.watch(steps, settle=4)
                    figures = steps_figures(arrivals, self._read.step(batch, context, rows))
                    yield {"batch": batch, "rows": rows, **figures, **drafted_figures(arrivals)}

    def prefill(self) -> Iterator[Figures]:
        """One prompt at a time: from its submission to its first token."""
        for length in self._sizes.prompts:
            seconds = [self._first_token(length) for _ in range(1 + self._sizes.prompt_rounds)][1:]
            median = statistics.median(seconds)
            yield {
                "prompt": length,
                "tokens/s": length / median,
                "ms": median * 1e3,
                "slowest ms": max(seconds) * 1e3,
                "fastest ms": min(seconds) * 1e3,
            }

    def device(self) -> Iterator[Figures]:
        """What the device does during served steps, and what its graph takes by itself."""
        context = self._sizes.batch_context
        for batch, rows in self._sizes.device:
            proposer = DRAFTED if rows > 1 else ""
            self._trees.resize(rows)
            with self._loop.decoding(self._jobs(batch, context, proposer)):
                served = steps_figures(self._loop.watch(self._sizes.steps), self._read.step(batch, context, rows))
                self._model.times = times = PassTimes()
                self._loop.watch(self._sizes.steps)
                self._model.times, plan = None, self._model.last_plan
            assert plan is not None
            yield {
                "batch": batch,
                "rows": rows,
                "served step ms": served["step ms"],
                "bare replay ms": self._model.replay(plan, self._sizes.steps),
                "graph in service ms": statistics.median(times.graphs()) / 1e3,
                "between graphs us": statistics.median(times.between_graphs()),
                "between passes us": statistics.median(times.between_passes()),
                "p90 us": sorted(times.between_passes())[int(0.9 * len(times.between_passes()))],
            }

    def _plain(self, batch: int, context: int) -> Figures:
        with self._loop.decoding(self._jobs(batch, context, "")):
            arrivals = self._loop.watch(self._sizes.steps)
        middle = context + self._sizes.steps // 2
        return steps_figures(arrivals, self._read.step(batch, middle))

    def _first_token(self, length: int) -> float:
        (prompt,) = self._prompts([length])
        begun = time.perf_counter()
        self._loop.run([Job(prompt, 1)], 1)
        return self._loop.arrivals[-1].at - begun

    def _jobs(self, batch: int, context: int, proposer: str) -> list[Job]:
        return [Job(prompt, ENDLESS, proposer=proposer) for prompt in self._prompts([context] * batch)]

    def _prompts(self, lengths: Sequence[int]) -> list[tuple[int, ...]]:
        """Never the same prompt twice: the prefix cache stays on and finds nothing."""
        self._seed += 1
        return random_token_ids(lengths, self._vocab_size, self._seed)


SECTIONS: dict[str, Callable[[Sections], Iterator[Figures]]] = {
    "plain": Sections.plain,
    "batch": Sections.batch,
    "verify": Sections.verify,
    "device": Sections.device,
    "prefill": Sections.prefill,
}
