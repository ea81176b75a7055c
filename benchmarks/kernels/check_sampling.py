"""The GPU's sampling and log-probability kernels at the sizes of large models: against their twins, and their times.

    PYTHONPATH=.:kernels:protos python -m benchmarks.kernels.check_sampling [--output FILE]

Random logits with ties and random parameters of all kinds: bias, penalties, paths, least lengths, filters, noise. A
kernel's output must equal its twin's in every bit but for the logarithms, which may differ in float64's last ones. The
time is the median of CUDA graph replays over the calls in a graph. Ends with 1 where a kernel is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import triton

from benchmarks.kernels.op_time import microseconds
from benchmarks.kernels.sampling_cases import SamplingCase, plain_case, random_case
from benchmarks.lib.report import machine, markdown_table, write_json
from slipstream_kernels.ops.gpu.filters import filter_rows, filter_rows_reference
from slipstream_kernels.ops.gpu.logits import process, process_reference
from slipstream_kernels.ops.gpu.logprobs import logprobs, logprobs_reference
from slipstream_kernels.ops.gpu.philox import gumbel, gumbel_reference
from slipstream_kernels.ops.gpu.sampling import sample, sample_reference, sampling_workspace

VOCAB = 128_256
DEVICE = torch.device("cuda")
CHECKS = ((64, VOCAB, None), (64, VOCAB, 0.8), (3, VOCAB, 0.9), (24, 8192, None), (40, 5003, 1.3), (1, 151_936, 0.7))
"""Rows, vocabulary and temperature; None mixes temperatures."""
ROWS = (1, 4, 16, 64, 256)
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "noise": {"temperature": 0.8},
    "penalties": {"presence": 0.5, "repetition": 1.1},
    "top-k 50": {"temperature": 0.8, "top_k": 50},
    "top-p 0.9": {"temperature": 0.8, "top_p": 0.9},
    "min-p 0.05": {"temperature": 0.8, "min_p": 0.05},
    "all": {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "min_p": 0.05, "presence": 0.5, "has_bias": True},
}
TOP = 20
CLOSE = 1e-6


def poison(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape, torch.nan if dtype.is_floating_point else -9, dtype=dtype, device=DEVICE)


def same(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Bit for bit, but for -0 and 0; poison is in the same places."""
    return bool(((ours == theirs) | ((ours != ours) & (theirs != theirs))).all())


def wrong_in(case: SamplingCase) -> Iterator[str]:
    """Names of the ops that differ from their twins."""
    rows, vocab_size = case.logits.shape
    out, twin = (poison(rows, vocab_size) for _ in range(2))
    process(*case.inputs, out)
    process_reference(*case.inputs, twin)
    if not same(out, twin):
        yield "process"
    ours, theirs = (sampling_workspace(rows, vocab_size, DEVICE) for _ in range(2))
    filter_rows(*case.inputs, ours.histograms, ours.thresholds)
    filter_rows_reference(*case.inputs, theirs.histograms, theirs.thresholds)
    if not same(ours.thresholds, theirs.thresholds):
        yield "filter_rows"
    tokens, expected = (poison(rows, dtype=torch.int32) for _ in range(2))
    sample(*case.inputs, ours, tokens)
    sample_reference(*case.inputs, theirs, expected)
    if not same(tokens, expected):
        yield f"sample, {int((tokens != expected).sum())} rows"
    lines = case.lines[:rows]
    gumbel(case.tensors.params, lines, case.positions[:rows], out)
    gumbel_reference(case.tensors.params, lines, case.positions[:rows], twin)
    if not same(out, twin):
        yield f"gumbel, {int((out != twin).sum())} values"
    yield from wrong_logprobs(case)


def wrong_logprobs(case: SamplingCase) -> Iterator[str]:
    rows, vocab_size = case.logits.shape
    wanted = torch.randint(0, rows, (rows,), dtype=torch.int32, device=DEVICE)
    chosen = torch.randint(0, vocab_size, (rows,), dtype=torch.int32, device=DEVICE)
    found, expected = (
        [
            poison(rows),
            poison(rows, dtype=torch.int32),
            poison(rows, TOP, dtype=torch.int32),
            poison(rows, TOP),
        ]
        for _ in range(2)
    )
    logprobs(case.logits, wanted, chosen, TOP, *found)
    logprobs_reference(case.logits, wanted, chosen, TOP, *expected)
    for name, ours, theirs in zip(("chosen", "ranks", "ids", "values"), found, expected, strict=True):
        close = torch.allclose(ours, theirs, rtol=CLOSE, atol=0) if ours.is_floating_point() else same(ours, theirs)
        if not close:
            yield f"logprobs, {name}"


def times() -> Iterator[dict[str, Any]]:
    """Microseconds of `sample`, and of its filters alone, by parameters and rows; of `logprobs` by rows."""
    for rows in ROWS:
        workspace = sampling_workspace(rows, VOCAB, DEVICE)
        out = poison(rows, dtype=torch.int32)
        for name, parameters in WAYS.items():
            case = plain_case(rows, VOCAB, DEVICE, **parameters)
            inputs = case.inputs
            yield {
                "op": f"sample, {name}",
                "rows": rows,
                "microseconds": microseconds(lambda: sample(*inputs, workspace, out)),  # noqa: B023 (called at once)
                "of these filters": microseconds(
                    lambda: filter_rows(*inputs, workspace.histograms, workspace.thresholds)  # noqa: B023 (as above)
                ),
            }
        outputs = (poison(rows), out, poison(rows, TOP, dtype=torch.int32), poison(rows, TOP))
        arguments = case.logits, case.logit_rows, case.logit_rows, TOP, *outputs
        yield {
            "op": f"logprobs, top {TOP}",
            "rows": rows,
            "microseconds": microseconds(lambda: logprobs(*arguments)),  # noqa: B023 (as above)
            "of these filters": None,
        }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernels.check_sampling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path, help="write the figures here as JSON")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("check_sampling needs a CUDA device")
        return 2
    torch.manual_seed(0)
    wrong: list[str] = []
    for seed, (rows, vocab_size, temperature) in enumerate(CHECKS):
        case = random_case(rows, vocab_size, DEVICE, seed=seed, temperature=temperature)
        wrong += [f"{name} at {rows} rows of {vocab_size}" for name in wrong_in(case)]
    for seed in range(4):
        case = plain_case(128, VOCAB, DEVICE, temperature=1.0, seed=seed)
        wrong += [f"{name} at 128 rows of noise" for name in wrong_in(case)]
    figures = list(times())
    columns = ("op", "rows", "microseconds", "of these filters")
    print(markdown_table(columns, [[figure[column] for column in columns] for figure in figures]))
    print(f"{len(CHECKS) + 4} checks, wrong: {', '.join(wrong) or 'none'}")
    if options.output is not None:
        facts = machine() | {"gpu": torch.cuda.get_device_name(), "triton": triton.__version__}
        write_json(options.output, {"machine": facts, "wrong": wrong, "figures": figures})
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
