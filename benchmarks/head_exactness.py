"""Answers with an EAGLE-3 head that drafts behind passes in the model's process, against plain decoding's, one by one.

    python -m benchmarks.head_exactness --prompts spec_bench_question.jsonl [--device cuda|cpu|cpu-twins]
    python -m benchmarks.head_exactness --prompts ... --limit 2000 --random-budgets 1     # who has a tree is drawn

Requests pass through the verify loop as the service runs it, without a network: plainly one at a time, then with the
head, at every temperature, alone and many at a time. The exit status is 1 where an answer differs, or where no step on
a GPU began with a tree that only the device knew. On a CPU heads draft behind no passes, and there are no such trees:
`cpu` is the engine that serves there, `cpu-twins` that of a GPU with the ops' twins in torch, a hundred times slower.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from benchmarks.inflate.shape import Shape
from benchmarks.lib.prompts import load_prompts
from benchmarks.lib.report import gpu_machine, markdown_table, write_json
from benchmarks.lib.repository import DEMO_HEAD, DEMO_MODEL
from benchmarks.local_engine.figures import Figures
from benchmarks.local_engine.local_loop import EngineConfig, Job
from benchmarks.local_engine.measured_model import MeasuredModel, make_weights, start_model
from benchmarks.local_engine.prompt_tokens import chat_token_ids
from benchmarks.local_engine.random_budgets import random_budgets
from benchmarks.local_engine.speculative_loop import Drafters, plain_loop, speculative_loop
from slipstream_kernels.draft_protocol.proposer_host import IN_PROCESS
from slipstream_kernels.models.checkpoint.fingerprint import fingerprint
from slipstream_kernels.models.cpu.causal_lm import CausalLM

CPU = "cpu"
BOUNDARIES = 3
"""Whose states a head reads."""
SEED = 100
TEMPERATURES = (0.0, 0.8)
RUN_SECONDS = 7200.0
"""Of all requests of a temperature; a hang ends some time."""


def compare(options: argparse.Namespace) -> list[Figures]:
    """A row for each temperature and number of requests at a time."""
    prompts = [
        ids
        for ids in chat_token_ids(options.model, load_prompts(options.prompts, limit=options.limit))
        if len(ids) < options.longest
    ]
    config = EngineConfig(
        num_pages=(options.concurrency + 2) * -(-(options.longest + options.tokens) // 16),
        max_running=options.concurrency,
        max_nodes=options.rows,
        step_nodes=(options.rows - 1) * options.concurrency,
        max_context=options.longest + options.tokens + 1,
        adaptive=False,
        prefix_cache=False,
    )
    jobs = {
        temperature: [
            Job(prompt, options.tokens, temperature=temperature, seed=SEED + number, to_the_end=True)
            for number, prompt in enumerate(prompts)
        ]
        for temperature in TEMPERATURES
    }
    model: CausalLM | MeasuredModel
    if options.device == CPU:
        model = CausalLM.load(options.model)
    else:
        weights = make_weights("folder", options.model, Shape(), options.device.removesuffix("-twins"))
        model = start_model(weights, config, mode="exact", boundaries=BOUNDARIES)
    with plain_loop(model, replace(config, max_running=1)) as loop:
        expected = {
            temperature: [answer.token_ids for answer in loop.run(alone, 1, timeout=RUN_SECONDS)]
            for temperature, alone in tqdm(jobs.items(), desc="plain")
        }
    settings = f"target={options.model}:{options.settings}:num_draft_tokens={options.rows}"
    spec = f"draft_service.proposers.eagle.eagle3:create:{options.head}:{settings}"
    drafters = Drafters({"eagle3": spec}, IN_PROCESS, options.device.removesuffix("-twins"), deadline=30.0)
    tokenizer = fingerprint(options.model).tokenizer
    rows: list[Figures] = []
    with ExitStack() as stack:
        measured = stack.enter_context(speculative_loop(model, config, drafters, tokenizer, BOUNDARIES))
        if options.random_budgets is not None:
            stack.enter_context(random_budgets(options.random_budgets))
        for temperature, alone in jobs.items():
            drafted = [replace(job, proposer="eagle3", rows=options.rows) for job in alone]
            for at_once, part in ((1, drafted[: max(1, len(drafted) // 4)]), (options.concurrency, drafted)):
                before, unread = measured.loop.loop.state(), measured.link.unread
                answers = measured.loop.run(part, at_once, timeout=RUN_SECONDS)
                after = measured.loop.loop.state()
                rows.append(
                    {
                        "temperature": temperature,
                        "at once": at_once,
                        "answers": len(answers),
                        "differ": sum(
                            answer.token_ids != tokens
                            for answer, tokens in zip(answers, expected[temperature], strict=False)
                        ),
                        "accepted": after.accepted_tokens - before.accepted_tokens,
                        "steps": after.steps - before.steps,
                        "with trees of the device": measured.link.unread - unread,
                    }
                )
                print(rows[-1], flush=True)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print the table, and say whether all answers are equal."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.head_exactness", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--prompts", type=Path, required=True, help="prompt file, as benchmarks.lib.prompts reads")
    parser.add_argument("--model", type=Path, default=DEMO_MODEL, help="target (the demo model)")
    parser.add_argument("--head", type=Path, default=DEMO_HEAD, help="EAGLE-3 head (the demo model's)")
    parser.add_argument("--settings", default="num_steps=5:topk=8", help="of the head (num_steps=5:topk=8)")
    parser.add_argument("--device", default="cuda", help="cuda, cpu or cpu-twins (cuda)")
    parser.add_argument("--limit", type=int, default=240, help="prompts (240)")
    parser.add_argument("--longest", type=int, default=1500, help="tokens of a prompt, longer ones are left out (1500)")
    parser.add_argument("--tokens", type=int, default=64, help="most new tokens of an answer (64)")
    parser.add_argument("--rows", type=int, default=32, help="of a tree, root included (32)")
    parser.add_argument("--concurrency", type=int, default=32, help="requests at a time, beside one alone (32)")
    parser.add_argument(
        "--random-budgets", type=int, metavar="SEED", help="draw who has a tree, how deep and how large, for each step"
    )
    parser.add_argument("--output", type=Path, help="write the results as JSON")
    options = parser.parse_args(arguments)
    rows = compare(options)
    print(markdown_table(list(rows[0]), [list(row.values()) for row in rows]))
    if options.output:
        write_json(options.output, {"machine": gpu_machine(options.device.removesuffix("-twins")), "rows": rows})
    shown = options.device.startswith(CPU) or any(row["with trees of the device"] for row in rows)
    return int(not shown or any(row["differ"] for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
