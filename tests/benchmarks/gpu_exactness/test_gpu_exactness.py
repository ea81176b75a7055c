import json
from pathlib import Path

import pytest

from benchmarks.gpu_exactness import __main__
from benchmarks.gpu_exactness.cells import HEADER, Case, Cell, Count, Setting, failures, rows, settings, totals
from benchmarks.gpu_exactness.inflated import InflatedCount
from benchmarks.local_engine.local_loop import Answer, FinishReason, PositionLogprobs
from slipstream.generation_types import TokenLogprob, Usage
from support.quantised_models import FORMS, write_quantised

PROMPTS = Path(__file__).parents[2] / "data" / "prompts.jsonl"
SHAPE = {"hidden": 272, "layers": 3, "heads": 4, "kv-heads": 2, "head-dim": 64, "intermediate": 192, "vocab": 600,
         "context": 512}  # fmt: skip


def answer(tokens, ranks=(), accepted=0, cached=0, gap=1.0):
    logprobs = [
        PositionLogprobs(TokenLogprob(7, -0.5, rank), (TokenLogprob(7, -0.5, 1), TokenLogprob(8, -0.5 - gap, 2)))
        for rank in ranks
    ]
    usage = Usage(5, len(tokens), cached, len(tokens), 2 * accepted, accepted)
    return Answer(list(tokens), logprobs, usage, FinishReason.LENGTH)


def test_a_run_on_the_cpu_is_exact(tiny_model, tmp_path):
    shape = [part for name, size in SHAPE.items() for part in (f"--{name}", str(size))]
    sizes = {"batches": "2,1", "single": 1, "limit": 2, "tokens": 4, "rows": 6,
             "logit-prompts": 2, "logit-tokens": 3, "inflated-prompts": 2, "inflated-tokens": 3}  # fmt: skip
    flags = [part for name, value in sizes.items() for part in (f"--{name}", str(value))]
    common = ["--prompts", str(PROMPTS), "--device", "cpu", "--model", str(tiny_model)]
    parts = {}
    for names, chunks, dtype in (("demo,inflated", "16,whole", "auto"), ("logits", "16", "fp8")):
        output = tmp_path / f"{names}.json"
        chosen = ["--parts", names, "--chunks", chunks, "--kv-cache-dtype", dtype, "--output", str(output)]
        assert __main__.main([*common, *flags, *shape, *chosen]) == 0
        found = json.loads(output.read_text())["parts"]
        assert set(found) == set(names.split(","))
        parts |= found
    for name in ("demo", "logits"):
        everything = parts[name]["summary"]["all"]
        assert everything["mismatches"] == everything["row_mismatches"] == 0
        assert everything["accepted"] > 0
        assert everything["from_cache"] > 0
        assert parts[name]["summary"]["proposer oracle"]["accepted"] > 0
    assert [parts[name]["kv_cache_dtype"] for name in ("demo", "logits")] == ["bfloat16", "fp8_e4m3"]
    assert len(parts["demo"]["cells"]) == 4 * (2 * 6 + 1)
    logits = parts["logits"]["summary"]["all"]
    assert logits["rows_compared"] == logits["tokens"]
    assert parts["inflated"]["equal_tokens"] == 6


def test_activations_of_8_bits_are_exact_too(tiny_model, tmp_path):
    """Of a folder of e4m3, and of random weights that are rounded to it."""
    folder = write_quantised(tiny_model, tmp_path / "model", FORMS["float channel"])
    shape = [part for name, size in SHAPE.items() for part in (f"--{name}", str(size))]
    sizes = {"batches": "2,1", "single": 1, "limit": 2, "tokens": 4, "rows": 6, "logit-prompts": 2, "logit-tokens": 3}
    flags = [part for name, value in sizes.items() for part in (f"--{name}", str(value))]
    output = tmp_path / "found.json"
    chosen = ["--linear-activations", "fp8", "--chunks", "16", "--device", "cpu", "--output", str(output)]
    common = ["--prompts", str(PROMPTS), "--model", str(folder), *flags, *shape, *chosen]
    with pytest.raises(SystemExit):
        __main__.main(common)
    assert __main__.main([*common, "--parts", "demo,logits"]) == 0
    for part in json.loads(output.read_text())["parts"].values():
        assert part["linear_activations"] == "fp8"
        assert part["summary"]["all"]["mismatches"] == part["summary"]["all"]["row_mismatches"] == 0


def test_a_differing_token_and_a_differing_row_are_counted_apart():
    count = Count()
    count.add("same", answer((1, 2, 3), (4, 5, 6), accepted=2), answer((1, 2, 3), (4, 5, 6)))
    assert (count.mismatches, count.row_mismatches, count.rows_compared, count.accepted) == (0, 0, 3, 2)
    count.add("row", answer((1, 2, 3), (4, 9, 6)), answer((1, 2, 3), (4, 5, 6)))
    assert (count.mismatches, count.row_mismatches) == (0, 1)
    count.add("token", answer((1, 9, 3)), answer((1, 2, 3)))
    count.add("short", answer((1, 2)), answer((1, 2, 3)))
    count.add("no rows", answer((1,)), answer((1,), (4,)))
    assert (count.mismatches, count.row_mismatches) == (2, 2)
    assert count.differences[1] == "prompt token: tokens differ from output position 1 on"


def test_what_shows_nothing_fails():
    at_once, cached = settings((64,))
    good, none = Count(requests=1, drafted=3, accepted=2), Count(requests=1)
    assert not failures({Cell(at_once, 7, "oracle", 0.0): good, Cell(at_once, 7, "plain", 0.0): none})
    results = {
        Cell(at_once, 7, "oracle", 0.0): none,
        Cell(at_once, 7, "random", 0.0): none,
        Cell(cached, 7, "plain", 0.0): none,
        Cell(at_once, 1, "plain", 0.8): Count(from_cache=16),
        Cell(at_once, 1, "plain", 0.0): Count(mismatches=1, differences=["prompt x"]),
    }
    found = failures(results)
    assert [found[0], found[1]] == [
        "chunk 64, at once; batch 7; oracle; T=0: nothing was accepted",
        "chunk 64, at once; batch 7; random; T=0: nothing was drafted",
    ]
    assert "nothing came from the cache" in found[2]
    assert "16 tokens came from a cache that is off" in found[3]
    assert "1 mismatches, 0 of rows: prompt x" in found[4]


def test_counts_add_up_over_cells():
    first, second = Setting(64, False), Setting(0, True)
    results = {
        Cell(first, 7, "plain", 0.0): Count(requests=2, tokens=8, steps=8),
        Cell(second, 7, "oracle", 0.0): Count(requests=3, tokens=12, steps=4, differences=["a"]),
    }
    sums = totals(results, "batch")
    assert sums["batch 7"].tokens == 20
    assert list(totals(results, "setting")) == ["chunk 64, at once", "chunk whole, from the cache"]
    assert len(rows(sums.items())[0]) == len(HEADER)


def test_cases_ask_for_what_their_cell_says():
    job = Case("x", (1, 2), 9, 4).job("oracle", 0.8, 16)
    assert (job.proposer, job.temperature, job.seed, job.logprobs, job.max_tokens) == ("oracle", 0.8, 9, 4, 16)
    assert Case("x", (1, 2), 9, None).job("plain", 0.0, 16).proposer == ""


@pytest.mark.parametrize(("gap", "failed"), [(0.05, False), (0.5, True)])
def test_an_inflated_model_may_differ_at_near_ties_alone(gap, failed):
    count = InflatedCount()
    for _ in range(3):
        count.add(answer((1, 2, 3), (1, 1, 1)), answer((1, 2, 3)))
    count.add(answer((1, 2, 3), (1, 1, 1), gap=gap), answer((1, 9, 9)))
    assert (count.tokens, count.equal_tokens, count.equal_answers) == (12, 10, 3)
    assert count.first_differences == [pytest.approx(gap)]
    assert bool(count.failures()) == failed
