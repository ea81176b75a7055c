"""What fast mode computes, beside exact mode, on the weights of one model.

    python -m benchmarks.kernels.check_fast_results [--weights random|inflated] [--attention triton,flashinfer]
        [--output FILE]

Prompts are computed and then continued by the tokens that exact mode chooses, in every mode the same ones; at each of
them the logits are compared, by the norm of their difference, and the likeliest token. Exits with 1 where the logits
lie further apart than roundings of bfloat16 explain.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.inflate.shape_arguments import add_shape_arguments, shape_of
from benchmarks.lib.report import gpu_machine, markdown_table, write_json
from benchmarks.lib.repository import DEMO_MODEL
from benchmarks.local_engine.measured_model import make_weights
from benchmarks.local_engine.prompt_tokens import random_token_ids
from slipstream_kernels.models.gpu.batch.pass_plan import Int32
from slipstream_kernels.models.gpu.forward.flashinfer_attention import FLASHINFER, TRITON
from slipstream_kernels.models.gpu.forward.weights import GpuWeights
from slipstream_kernels.models.gpu.gpu_model import GpuLimits, GpuModel, PassPlan
from slipstream_kernels.ops.gpu.sampling_table import pack_line

PAGE_SIZE = 16
LIMIT = 0.05
"""Largest relative distance between rows of logits after all layers; a wrong row is at 1 or more."""
Rows = list[torch.Tensor]


class Requests:
    """Greedy requests, each on a line and on consecutive pages of its own."""

    def __init__(self, prompts: Sequence[Sequence[int]], steps: int) -> None:
        self.prompts = prompts
        self.pages = -(-(max(map(len, prompts)) + steps) // PAGE_SIZE)

    def limits(self, context: int) -> GpuLimits:
        count, longest = len(self.prompts), max(map(len, self.prompts))
        return GpuLimits(
            max_running=count, max_nodes=1, step_nodes=0, prefill_chunk=longest, page_size=PAGE_SIZE,
            num_pages=count * self.pages, max_context=min(context, self.pages * PAGE_SIZE),
        )  # fmt: skip

    def begin(self, model: GpuModel) -> None:
        """Tell the model of every line."""
        for line in range(len(self.prompts)):
            model.set_line(line, pack_line(temperature=0.0))
            model.set_pages(line, 0, np.arange(line * self.pages, (line + 1) * self.pages, dtype=np.int32))

    def prefill(self, line: int) -> PassPlan:
        """The whole prompt of one request."""
        prompt = np.array(self.prompts[line], np.int32)
        first = line * self.pages * PAGE_SIZE
        return PassPlan.chunk(prompt, line=line, start=0, slots=np.arange(first, first + len(prompt), dtype=np.int32))

    def decode(self, tokens: Int32, step: int) -> PassPlan:
        """Token number `step` of every output, for the one after it."""
        lines = np.arange(len(tokens), dtype=np.int32)
        ends = np.array([len(prompt) + step + 1 for prompt in self.prompts], np.int32)
        spans = np.stack([lines, np.ones_like(lines), lines, ends], axis=1)
        return PassPlan(
            token_ids=tokens,
            positions=ends - np.int32(1),
            write_slots=(lines * self.pages * PAGE_SIZE + ends - 1).astype(np.int32),
            lines=lines,
            prefix_lengths=ends,
            parents=np.full_like(lines, -2),
            root_rows=lines,
            logit_rows=lines,
            deciding=spans,
            decodes=spans,
        )


def outputs_of(model: GpuModel, requests: Requests, steps: int, truth: Sequence[Int32] = ()) -> Rows:
    """Logits [requests, vocab] of each step; outputs are those of `truth`, or else the likeliest tokens."""
    requests.begin(model)
    first = []
    for line in range(len(requests.prompts)):
        ticket = model.launch(requests.prefill(line))
        ticket.results()
        first.append(ticket.logits[0].clone())
    found = [torch.stack(first)]
    for step in range(steps - 1):
        tokens = truth[step] if truth else likeliest(found[-1])
        ticket = model.launch(requests.decode(tokens, step))
        ticket.results()
        found.append(ticket.logits.clone())
    return found


def likeliest(logits: torch.Tensor) -> Int32:
    """Token ids int32 [requests]."""
    return logits.argmax(1).to(torch.int32).cpu().numpy()


def compare(exact: Rows, fast: Rows) -> dict[str, float]:
    """How far the logits of prompts and of decoded tokens lie apart, and in how many rows the choice is the same."""
    distances = [((a - b).norm(dim=1) / a.norm(dim=1)).cpu() for a, b in zip(exact, fast, strict=True)]
    same = [(likeliest(a) == likeliest(b)).mean() for a, b in zip(exact, fast, strict=True)]
    return {
        "rows": float(sum(map(len, distances))),
        "after prompt": float(distances[0].max()),
        "decoded, median": float(torch.stack(distances[1:]).median()),
        "decoded, largest": float(torch.stack(distances[1:]).max()),
        "same choice": float(np.mean(same)),
    }


def start(weights: GpuWeights, limits: GpuLimits, mode: str, attention: str) -> GpuModel:
    return GpuModel.from_weights(weights, limits, mode=mode, attention=attention, capture=False)


def measure(
    weights: GpuWeights, attentions: Sequence[str], lengths: Sequence[int], steps: int
) -> list[dict[str, float | str]]:
    """A row for each attention of fast mode."""
    requests = Requests(random_token_ids(lengths, weights.shard.config.vocab_size), steps)
    limits = requests.limits(weights.shard.config.max_context)
    exact = outputs_of(start(weights, limits, "exact", TRITON), requests, steps)
    truth = [likeliest(logits) for logits in exact]
    rows: list[dict[str, float | str]] = []
    for attention in attentions:
        model = start(weights, limits, "fast", attention)
        rows.append({"attention": attention} | compare(exact, outputs_of(model, requests, steps, truth)))
    return rows


def main() -> int:
    """Compare and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernels.check_fast_results",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--weights", choices=("random", "inflated"), default="random")
    parser.add_argument("--model", type=Path, default=DEMO_MODEL, help="model whose constants, or text, are taken")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--attention", type=lambda text: text.split(","), default=[TRITON, FLASHINFER])
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--output", type=Path)
    add_shape_arguments(parser)
    options = parser.parse_args()
    weights = make_weights(options.weights, options.model, shape_of(options), options.device)
    rows = measure(weights, options.attention, (700, 33, 64, 1500, 1, 257, 1024, 90), options.steps)
    print(markdown_table(list(rows[0]), [list(row.values()) for row in rows]))
    if options.output:
        write_json(options.output, {"machine": gpu_machine(options.device), "rows": rows})
    return 0 if all(float(row["decoded, largest"]) < LIMIT > float(row["after prompt"]) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
