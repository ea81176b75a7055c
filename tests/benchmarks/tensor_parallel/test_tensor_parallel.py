import json
from pathlib import Path

import pytest

from benchmarks.inflate.shape import LLAMA_4_SCOUT, LLAMA_8B
from benchmarks.tensor_parallel import __main__
from benchmarks.tensor_parallel.__main__ import SizeProcess, summary
from benchmarks.tensor_parallel.ranks import Weights
from benchmarks.tensor_parallel.size import config_of
from slipstream_kernels.models.checkpoint.quantisation.round_to_nearest import RoundedFormat
from support.models import make_tiny_model

PROMPTS = Path(__file__).parents[2] / "data" / "prompts.jsonl"
SHAPE = {"hidden": 272, "layers": 3, "heads": 4, "kv-heads": 2, "head-dim": 64, "intermediate": 192, "vocab": 600,
         "context": 4096}  # fmt: skip
SIZES = {"batch": 2, "rows": 4, "measured-context": 30, "steps": 2, "cases": 1, "tokens": 3, "prefill-chunk": 48,
         "chunks": 16}  # fmt: skip


def flags(**changes):
    values = SHAPE | SIZES | changes
    return ["--prompts", str(PROMPTS), "--device", "cpu",
            *(part for name, value in values.items() for part in (f"--{name}", str(value)))]  # fmt: skip


@pytest.mark.slow
def test_sizes_are_measured_and_compared(tiny_model, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    output = tmp_path / "results.json"
    assert __main__.main([*flags(), "--model", str(tiny_model), "--output", str(output)]) == 0
    results = json.loads(output.read_text())
    assert results["failures"] == []
    assert list(results["sizes"]) == ["2", "1"]
    shared = results["sizes"]["2"]
    for kind in ("random", "inflated"):
        assert shared[f"{kind} exactness"]["all"]["requests"] > 0
        assert shared[f"{kind} exactness"]["proposer oracle"]["accepted"] > 0
        assert shared[f"{kind} exactness"]["all"]["rows_compared"] == shared[f"{kind} exactness"]["all"]["tokens"]
    rows = results["compared"]["verify"]
    assert [(row["batch"], row["rows"]) for row in rows] == [(1, 1), (1, 4)]
    assert all(row["size 2 step ms"] > 0 and row["size 1 step ms"] > 0 for row in rows)


@pytest.mark.slow
def test_a_rounded_mixture_is_random_alone(tiny_model, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    output = tmp_path / "results.json"
    scout = ["--shape", "llama-4-scout", "--experts", "4", "--format", "fp8", "--sizes", "2"]
    arguments = [*flags(hidden=256), *scout, "--model", str(tiny_model), "--output", str(output)]
    assert __main__.main(arguments) == 0
    shared = json.loads(output.read_text())["sizes"]["2"]
    assert shared["random exactness"]["all"]["requests"] > 0 and "inflated exactness" not in shared
    assert [row["batch"] for row in shared["plain"]] == [1, 2]


@pytest.mark.parametrize("form", [None, RoundedFormat("w4a16", 64)])
@pytest.mark.parametrize("shape", [LLAMA_8B, LLAMA_4_SCOUT])
def test_ranks_are_told_what_to_make(tmp_path, shape, form):
    made = Weights(tmp_path, shape, form)
    assert Weights.from_json(tmp_path, made.to_json()) == made
    assert made.kinds == (("random", "inflated") if shape is LLAMA_8B and form is None else ("random",))


def test_a_size_that_cannot_run_fails(tmp_path, capfd):
    model = make_tiny_model(tmp_path / "model")
    arguments = [*flags(heads=2, **{"kv-heads": 1}), "--model", str(model)]
    process = SizeProcess(2, arguments)
    try:
        results, failed = process.measure()
    finally:
        process.kill()
    assert results == {}
    assert failed == ["size 2: the process ended with status 1", "nothing was compared"]
    assert "num_key_value_heads is 1, which does not divide among 2 ranks" in capfd.readouterr().err


def test_equal_answers_are_counted():
    def size(milliseconds, tokens):
        return {
            "plain": [{"context": 1, "batch": 1, "step ms": milliseconds}],
            "verify": [{"batch": 1, "rows": 16, "step ms": milliseconds}],
            "random tokens": tokens,
        }

    found = summary({2: size(3.0, [[1, 2], [3, 4]]), 1: size(6.0, [[1, 2], [3, 5]])})
    assert found["random tokens, size 2 and size 1"] == {"answers": 2, "equal": 1}
    assert found["plain"][0]["size 2 / size 1"] == pytest.approx(0.5)


def test_the_loop_has_room_for_every_part():
    config = config_of(__main__.parse(["--prompts", "x"]))
    assert config.max_running == 64
    assert config.num_pages * config.page_size >= 64 * (1024 + 512)
    assert config.max_nodes == 64
    assert config.step_nodes >= 7 * 15
