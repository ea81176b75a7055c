"""Speed on the CPU against Hugging Face transformers: same machine, same threads, same models, one run.

    python -m benchmarks.cpu_speed [--rounds 3] [--threads 2] [--prompts FILE] [--output FILE]

Every way of generating takes its turn in every round, so that a noisy machine bothers all alike; the figures are
medians over rounds, in generated tokens a second with the prompts' computation included. All outputs have full
length (no end-of-sequence), are greedy, and no prefix cache helps. Requests of `draft-model` insist on trees, those of
`default` say nothing of speculation.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from benchmarks.cpu_speed.transformers_baseline import DTYPES, TransformersBaseline
from benchmarks.lib.prompts import Prompt, load_prompts
from benchmarks.lib.report import machine, markdown_table, write_json
from benchmarks.lib.repository import DEMO_DRAFT_MODEL, DEMO_MODEL
from benchmarks.lib.runner import Job, connect
from launcher.supervision.cluster import Cluster
from slipstream import LLM, SamplingParams

BATCH = 8
OWN_PROMPTS = (
    "What is the capital of France, and what is it known for?",
    "Write a short story about a boat that was afraid of water.",
    "Tom has 12 apples. He gives 5 to Anna and buys 9 more. How many apples does he have now?",
    "Explain in simple words why the sky is blue.",
    "Give me three tips for learning to ride a bicycle.",
    "Write a Python function that returns the largest number in a list.",
    "What should I cook tonight with potatoes, eggs and an onion?",
    "Who was Ada Lovelace and why do people still talk about her?",
)


@dataclass(frozen=True, slots=True)
class RequiredRatio:
    """A ratio that must hold: `ours` over the faster dtype of `theirs`."""

    ours: str
    theirs: str
    at_least: float


PLAIN_1, PLAIN_8 = "plain, 1 stream", f"plain, {BATCH} streams"
DRAFT_1, DRAFT_8 = "draft-model, 1 stream", f"draft-model, {BATCH} streams"
DEFAULT_1, DEFAULT_8 = "default, 1 stream", f"default, {BATCH} streams"
SINGLE, BATCHED, ASSISTED = "1 stream", f"batch of {BATCH}", "assisted, 1 stream"
TARGETS = (
    RequiredRatio(PLAIN_1, SINGLE, 2.0),
    RequiredRatio(PLAIN_8, SINGLE, 4.0),
    RequiredRatio(PLAIN_8, BATCHED, 1.5),
    RequiredRatio(DRAFT_1, ASSISTED, 1.5),
)


class Speed:
    """The prompts, the models and what was measured so far: (engine, way) -> tokens a second, a round each."""

    def __init__(self, options: argparse.Namespace, ids: Sequence[tuple[int, ...]]) -> None:
        self.options = options
        self.ids = ids
        self.measured: dict[tuple[str, str], list[float]] = {}

    def note(self, engine: str, way: str, figure: float) -> None:
        self.measured.setdefault((engine, way), []).append(figure)

    def median(self, engine: str, way: str) -> float | None:
        figures = self.measured.get((engine, way))
        return statistics.median(figures) if figures else None

    def baseline(self, way: str) -> tuple[str, float]:
        """The faster dtype of transformers for a way of generating, and its figure."""
        figures = {dtype: self.median(f"transformers {dtype}", way) or 0.0 for dtype in DTYPES}
        best = max(figures, key=lambda dtype: figures[dtype])
        return best, figures[best]

    def transformers_round(self, step: Callable[[], object]) -> None:
        """Each dtype: one stream, a batch, assisted."""
        for dtype in DTYPES:
            baseline = TransformersBaseline(self.options.model, self.options.draft, dtype, self.options.threads)
            baseline.single(self.ids[:1], 8)
            for way, measure in ((SINGLE, baseline.single), (BATCHED, baseline.batch), (ASSISTED, baseline.assisted)):
                self.note(f"transformers {dtype}", way, measure(self.ids, self.options.tokens))
                step()

    async def served_round(self, gateway_grpc: str, step: Callable[[], object]) -> None:
        """Through the gateway's gRPC door: speculation off, insisted on, and left to the service."""
        asked = (("", False, (PLAIN_1, PLAIN_8)), ("draft-model", False, (DRAFT_1, DRAFT_8)))
        async with connect(gateway_grpc) as runner:
            for proposer, adaptive, ways in (*asked, ("", True, (DEFAULT_1, DEFAULT_8))):
                for way, concurrency in zip(ways, (1, BATCH), strict=True):
                    tokens = self.options.tokens
                    jobs = [
                        Job(each, tokens, proposer=proposer, adaptive=adaptive, ignore_eos=True) for each in self.ids
                    ]
                    start = time.perf_counter()
                    answers = await runner.run(jobs, concurrency)
                    seconds = time.perf_counter() - start
                    self.note("slipstream, served", way, sum(len(a.token_ids) for a in answers) / seconds)
                    step()

    def offline_round(self, llm: LLM, ways: tuple[str, str], step: Callable[[], object]) -> None:
        """Through launcher.LLM, prompts handed over one by one and then all at once."""
        sampling = SamplingParams(temperature=0.0, max_tokens=self.options.tokens, ignore_eos=True)
        prompts = [list(ids) for ids in self.ids]
        calls = ([[prompt] for prompt in prompts], [prompts])
        for way, batches in zip(ways, calls, strict=True):
            start = time.perf_counter()
            for batch in batches:
                llm.generate(batch, sampling, use_tqdm=False)
            seconds = time.perf_counter() - start
            self.note("slipstream, offline", way, len(prompts) * self.options.tokens / seconds)
            step()


def report(speed: Speed) -> tuple[str, list[dict[str, object]]]:
    """The table of medians, and each target with its ratio."""
    rows: list[list[object]] = [
        [engine, way, statistics.median(figures), min(figures), max(figures)]
        for (engine, way), figures in speed.measured.items()
    ]
    ratios: list[dict[str, object]] = []
    for target in TARGETS:
        dtype, theirs = speed.baseline(target.theirs)
        for engine in ("slipstream, served", "slipstream, offline"):
            ours = speed.median(engine, target.ours)
            if ours is not None and theirs:
                what = f"{engine}: {target.ours} / transformers {dtype}, {target.theirs}"
                ratios.append({"ratio of": what, "ratio": ours / theirs, "at least": target.at_least})
    tables = (
        markdown_table(("engine", "way", "tokens/s", "slowest round", "fastest round"), rows),
        markdown_table(("ratio of", "ratio", "at least"), [list(each.values()) for each in ratios]),
    )
    return "\n\n".join(tables), ratios


@contextmanager
def _offline(options: argparse.Namespace, verify_args: Sequence[str], draft_args: Sequence[str]) -> Iterator[list[LLM]]:
    """One LLM without and one with the draft model, or none at all."""
    with ExitStack() as stack:
        draft = {"method": "draft-model", "model": str(options.draft)}
        configs = [] if options.no_offline else [None, draft]
        yield [
            stack.enter_context(
                LLM(options.model, speculative_config=config, verify_args=verify_args, draft_args=draft_args)
            )
            for config in configs
        ]


async def _measure(options: argparse.Namespace) -> int:
    own = [Prompt(str(number), "own", (("user", text),)) for number, text in enumerate(OWN_PROMPTS)]
    prompts = load_prompts(options.prompts, limit=BATCH) if options.prompts else own
    draft_args = ("--threads", str(options.draft_threads))
    verify_args = ("--threads", str(options.threads), "--no-prefix-cache")
    cluster = Cluster(
        options.model, draft=(f"draft-model:{options.draft}",), verify_args=verify_args, draft_args=draft_args
    )
    per_round = 6 + 6 + 4 * (not options.no_offline)
    with cluster, _offline(options, verify_args, draft_args) as llms:
        async with connect(cluster.gateway_grpc) as runner:
            ids = await runner.tokenize(prompts)
            await runner.run([Job(each, 8, proposer="draft-model") for each in ids], BATCH)
        speed = Speed(options, ids)
        with tqdm(total=options.rounds * per_round, desc="measurements") as bar:
            for _ in range(options.rounds):
                speed.transformers_round(bar.update)
                await speed.served_round(cluster.gateway_grpc, bar.update)
                for llm, ways in zip(llms, ((PLAIN_1, PLAIN_8), (DRAFT_1, DRAFT_8)), strict=False):
                    speed.offline_round(llm, ways, bar.update)
    text, ratios = report(speed)
    print(text)
    if options.output:
        facts = {"prompts": len(ids), "prompt_tokens": sum(map(len, ids)), "new_tokens": options.tokens}
        settings = {
            **facts,
            "rounds": options.rounds,
            "threads": options.threads,
            "draft_threads": options.draft_threads,
        }
        measured = {f"{engine} | {way}": figures for (engine, way), figures in speed.measured.items()}
        write_json(
            options.output, {"machine": machine(), "settings": settings, "tokens_a_second": measured, "ratios": ratios}
        )
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; the exit status says nothing about speed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu_speed", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", type=Path, default=DEMO_MODEL, help="target model")
    parser.add_argument("--draft", type=Path, default=DEMO_DRAFT_MODEL, help="draft model")
    parser.add_argument("--prompts", type=Path, help="prompt file; default: eight prompts of our own")
    parser.add_argument("--tokens", type=int, default=128, help="new tokens a prompt (128)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds (3)")
    parser.add_argument("--threads", type=int, default=2, help="threads of the target, ours and theirs (2)")
    parser.add_argument("--draft-threads", type=int, default=1, help="threads of our draft service (1)")
    parser.add_argument("--no-offline", action="store_true", help="leave launcher.LLM out")
    parser.add_argument("--output", type=Path, help="write the results as JSON")
    return asyncio.run(_measure(parser.parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main())
