"""Chi-square over the joint of three consecutive tokens decided at tree nodes, against the exact distribution.

    python -m benchmarks.distribution [--seeds 20000] [--output FILE]

A random model of eight tokens is served by real services and drafted by `draft-model` on the same weights, so that
most steps accept several drafted tokens. Every seed counts, however its tokens were decided; the share of seeds whose
three tokens were all decided at tree nodes is printed beside the result.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tqdm import tqdm

from benchmarks.distribution.exact_law import (
    ChiSquare,
    Law,
    Prefix,
    chi_square,
    conditionals,
    joint,
    reference_logits,
    write_tiny_vocabulary_model,
)
from benchmarks.lib.report import machine, markdown_table, write_json
from benchmarks.lib.runner import Answer, Job, connect
from launcher.supervision.cluster import Cluster

LAW = Law(temperature=0.7, top_p=0.9, presence_penalty=0.5)
PROMPT: Prefix = (2, 5, 3, 7, 4, 6, 2, 2, 3)
FIRST = 2
"""Output position of the first of the three tokens: 0 is decided by the prompt's last row, 1 by a root."""
RUN = 3
SIGNIFICANCE = 1e-3
SHARE_AT_NODES = 0.4
"""With fewer seeds whose three tokens were all decided at tree nodes, the result would say little about trees."""


def decided_at_nodes(answer: Answer) -> bool:
    """Whether the tokens at FIRST .. FIRST + RUN - 1 were each decided at the row of an accepted tree node."""
    at_node: list[bool] = []
    for accepted in answer.accepted_by_step:
        at_node += [False] + [True] * accepted
    return all(at_node[FIRST : FIRST + RUN]) and len(at_node) >= FIRST + RUN


async def sample(folder: Path, seeds: int, concurrency: int) -> list[Answer]:
    """One answer a seed, through gateway, verify and draft."""
    jobs = [
        Job(
            PROMPT,
            FIRST + RUN,
            temperature=LAW.temperature,
            seed=seed,
            top_p=LAW.top_p,
            presence_penalty=LAW.presence_penalty,
            proposer="draft-model",
            max_nodes=32,
            max_depth=FIRST + RUN,
            ignore_eos=True,
        )
        for seed in range(seeds)
    ]
    engine = ("--max-running", str(concurrency), "--step-nodes", str(64 * concurrency))
    verify_args = ("--draft-deadline-ms", "250", *engine, "--log-level", "warning")
    chains = ("--topk", "1", "--max-depth", str(FIRST + RUN - 1))
    with Cluster(folder, draft=(f"draft-model:{folder}",), verify_args=verify_args, draft_args=chains) as cluster:
        async with connect(cluster.gateway_grpc) as runner:
            with tqdm(total=seeds, desc="seeds", mininterval=1.0) as bar:
                return await runner.run(jobs, concurrency, bar.update)


def exact_joint(folder: Path) -> dict[Prefix, float]:
    """The distribution that the counts are held against."""
    table = conditionals(reference_logits(folder), PROMPT, LAW, FIRST + RUN)
    return joint(table, FIRST, RUN)


def counts(answers: Sequence[Answer]) -> Counter[Prefix]:
    return Counter(answer.token_ids[FIRST : FIRST + RUN] for answer in answers)


async def _measure(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as temporary:
        folder = write_tiny_vocabulary_model(Path(temporary) / "model")
        answers = await sample(folder, options.seeds, options.concurrency)
        expected = exact_joint(folder)
    result: ChiSquare = chi_square(counts(answers), expected)
    at_nodes = sum(decided_at_nodes(answer) for answer in answers)
    accepted, drafted = (sum(getattr(answer, name) for answer in answers) for name in ("accepted", "drafted"))
    facts: list[list[object]] = [
        ["seeds", options.seeds],
        ["runs of three tokens with probability above 0", len(expected)],
        ["all three decided at tree nodes", f"{100 * at_nodes / options.seeds:.1f} % of seeds"],
        ["drafted tokens, accepted", f"{drafted}, {accepted}"],
        ["chi-square, degrees of freedom", f"{result.statistic:.1f}, {result.degrees}"],
        ["p-value", f"{result.p_value:.4f}"],
        ["impossible runs seen", result.impossible],
    ]
    print(markdown_table(("", "value"), facts))
    at_nodes_enough = at_nodes > SHARE_AT_NODES * options.seeds
    passed = at_nodes_enough and result.impossible == 0 and result.p_value > SIGNIFICANCE
    if options.output:
        content = {"machine": machine(), "law": asdict(LAW), "seeds": options.seeds, "at_nodes": at_nodes}
        write_json(options.output, {**content, "drafted": drafted, "accepted": accepted, **asdict(result)})
    return 0 if passed else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; exit status 0 if the counts fit the exact distribution and enough were decided at tree nodes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.distribution", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seeds", type=int, default=20_000, help="requests, one seed each (20000)")
    parser.add_argument("--concurrency", type=int, default=64, help="requests in flight (64)")
    parser.add_argument("--output", type=Path, help="write the result as JSON")
    return asyncio.run(_measure(parser.parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main())
