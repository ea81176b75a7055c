"""Times of speculative rounds at growing batches, with a head of random weights that is right as often as is said."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.lib.continuations import continuation_key, write_continuations
from benchmarks.local_engine.figures import Bytes, Figures, drafted_figures, steps_figures
from benchmarks.local_engine.local_loop import EngineConfig, Job, LocalLoop
from benchmarks.local_engine.measured_model import MeasuredModel
from benchmarks.local_engine.prompt_tokens import random_token_ids
from benchmarks.local_engine.speculative_loop import Drafters, SpeculativeLoop, plain_loop, speculative_loop
from benchmarks.speculation.acceptance_profile import OraclePlan, Profile, best_shape

PLAIN = "plain"
_FACTORY = "benchmarks.speculation.oracle:create"


@dataclass(frozen=True, slots=True)
class TreeShape:
    """As users of other engines write it: steps/top-k/rows, the root included."""

    steps: int
    top_k: int
    rows: int

    @classmethod
    def parse(cls, text: str) -> TreeShape:
        """Raises ValueError for other text."""
        return cls(*map(int, text.split("/")))

    @property
    def text(self) -> str:
        """As `parse` takes it."""
        return f"{self.steps}/{self.top_k}/{self.rows}"

    @property
    def arguments(self) -> str:
        """What follows a head's folder on the command line."""
        return f"num_steps={self.steps}:topk={self.top_k}:num_draft_tokens={self.rows}"


@dataclass(frozen=True, slots=True)
class RoundSizes:
    """Batches in requests, contexts in tokens; `steps` rounds are timed after `settle` others."""

    batches: tuple[int, ...] = (1, 4, 16, 64)
    context: int = 1024
    steps: int = 60
    settle: int = 40

    def tokens(self, shapes: Sequence[TreeShape]) -> int:
        """New tokens that a request may have to live through a measurement."""
        return (1 + max(shape.steps for shape in shapes)) * (self.settle + self.steps + 16)

    def config(self, shapes: Sequence[TreeShape], step_nodes: int, prefill_chunk: int) -> EngineConfig:
        """A loop with room for them; all prompts stay in its prefix cache."""
        longest, batch = self.context + self.tokens(shapes) + 1, max(self.batches)
        return EngineConfig(
            num_pages=2 * batch * -(-longest // 16),
            page_size=16,
            max_running=batch,
            max_nodes=max(shape.rows for shape in shapes),
            step_nodes=step_nodes,
            prefill_chunk=prefill_chunk,
            max_context=longest,
        )


class Rounds:
    """Measures one model. Every method yields rows as they are measured."""

    def __init__(
        self, model: MeasuredModel, config: EngineConfig, sizes: RoundSizes, shapes: dict[str, TreeShape], work: Path
    ) -> None:
        """shapes: of trees, by the names of their proposers. work: a folder for files."""
        self._model, self._config, self._sizes, self._shapes = model, config, sizes, shapes
        self._work = work
        self._read = Bytes.of(model.config)
        self._prompts = random_token_ids([sizes.context] * max(sizes.batches), model.config.vocab_size)
        self._tokens = sizes.tokens(list(shapes.values()))
        self._plain: dict[int, float] = {}

    def plain(self) -> Iterator[Figures]:
        """Plain decoding, without drafters; what the requests say is kept for the oracle."""
        with plain_loop(self._model, self._config) as loop:
            answers = loop.run(self._jobs(max(self._sizes.batches)), len(self._prompts))
            keys = [continuation_key(prompt, 0.0, 0) for prompt in self._prompts]
            said = {key: answer.token_ids for key, answer in zip(keys, answers, strict=True)}
            write_continuations(self._continuations, said)
            for batch in self._sizes.batches:
                row = self._row(loop, PLAIN, batch, self._jobs(batch), None)
                self._plain[batch] = float(row["tokens/s"] or 0)
                yield row

    def speculative(
        self, head: Path, drafters: Drafters, first: float, draft_bytes: dict[str, int]
    ) -> Iterator[Figures]:
        """Each shape with its budget fixed and under the controller. After `plain`.

        head: the head's folder. drafters: where they run; the proposers are made here. first: how often the likeliest
        token is right. draft_bytes: what the passes of a tree of each shape read.
        """
        plan = self._work / "oracle.json"
        OraclePlan(first, str(self._continuations)).write(plan)
        specs = {
            name: f"{_FACTORY}:{plan}:{shape.top_k}:eagle3:{head}:{shape.arguments}"
            for name, shape in self._shapes.items()
        }
        hosted = Drafters(specs, drafters.place, drafters.device, drafters.deadline)
        with speculative_loop(self._model, self._config, hosted) as measured:
            measured.loop.run([Job(prompt, 1) for prompt in self._prompts], len(self._prompts))
            for batch in self._sizes.batches:
                for name, shape in self._shapes.items():
                    expected = self._expected(shape, batch, first)
                    for adaptive in (False, True):
                        measured.link.chosen = name
                        kind = f"{name}, controller" if adaptive else name
                        jobs = self._jobs(batch, name, shape.rows, adaptive=adaptive)
                        row = self._row(measured.loop, kind, batch, jobs, measured, draft_bytes[name])
                        yield row | {"set acceptance": None if adaptive else expected}

    def _row(
        self,
        loop: LocalLoop,
        kind: str,
        batch: int,
        jobs: Sequence[Job],
        measured: SpeculativeLoop | None,
        draft_bytes: int = 0,
    ) -> Figures:
        missed = measured.state().misses if measured else 0
        with loop.decoding(jobs):
            arrivals = loop.watch(self._sizes.steps, settle=self._sizes.settle)
        missed = measured.state().misses - missed if measured else 0
        context = self._sizes.context + sum(arrival.tokens for arrival in arrivals[1:]) // (2 * batch)
        figures = steps_figures(arrivals, self._read.step(batch, context) + draft_bytes)
        row: Figures = {
            "batch": batch,
            "drafter": kind,
            "round p50 ms": figures["step ms"],
            "p90 ms": figures["p90 ms"],
            "mean ms": figures["mean ms"],
            "tokens/s": figures["tokens/s"],
            "x plain": float(figures["tokens/s"] or 0) / self._plain[batch] if batch in self._plain else 1.0,
            "acceptance": sum(arrival.tokens for arrival in arrivals[1:]) / (batch * (len(arrivals) - 1)),
            "nodes a round": drafted_figures(arrivals)["nodes a step"],
            "missed trees": missed,
            "TB/s": figures["TB/s"],
        }
        return row if measured else row | {"set acceptance": 1.0}

    def _jobs(self, batch: int, proposer: str = "", rows: int | None = None, *, adaptive: bool = False) -> list[Job]:
        named = "" if adaptive else proposer
        return [
            Job(prompt, self._tokens, proposer=named, rows=rows, adaptive=adaptive) for prompt in self._prompts[:batch]
        ]

    def _expected(self, shape: TreeShape, batch: int, first: float) -> float:
        """Acceptance length with trees of this shape, or of what of it a request's share of the step leaves."""
        nodes = min(shape.rows - 1, self._config.step_nodes // batch)
        return best_shape(Profile(first), nodes=nodes, depth=shape.steps, width=shape.top_k).expected_length

    @property
    def _continuations(self) -> Path:
        return self._work / "continuations.json"
