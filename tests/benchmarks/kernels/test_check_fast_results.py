from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.inflate.shape import Shape
from benchmarks.kernels.check_fast_results import Requests, compare, likeliest, measure, outputs_of, start
from benchmarks.local_engine.measured_model import make_weights
from benchmarks.local_engine.prompt_tokens import random_token_ids
from slipstream_kernels.models.gpu.forward.weights import GpuWeights

SHAPE = Shape(
    hidden_size=128, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=64, intermediate_size=160, vocab_size=512,
    max_context=256,
)  # fmt: skip


@pytest.fixture(scope="module")
def weights(tiny_model: Path) -> GpuWeights:
    return make_weights("random", tiny_model, SHAPE, "cpu")


def test_decoded_rows_are_those_of_a_prompt_that_holds_them(weights: GpuWeights) -> None:
    requests = Requests(random_token_ids((5, 1, 18), 512), 4)
    model = start(weights, requests.limits(256), "exact", "triton")
    found = outputs_of(model, requests, 4)
    longer = [
        (*prompt, *(int(likeliest(step)[line]) for step in found[:3])) for line, prompt in enumerate(requests.prompts)
    ]
    whole = Requests(longer, 1)
    (expected,) = outputs_of(start(weights, whole.limits(256), "exact", "triton"), whole, 1)
    assert (found[3] - expected).norm() < 0.02 * expected.norm()


def test_another_library_is_seen_and_is_near(weights: GpuWeights) -> None:
    (row,) = measure(weights, ["triton"], (20, 3), 3)
    assert row["rows"] == 6
    assert 0 < float(row["decoded, median"]) <= float(row["decoded, largest"]) < 0.05
    assert 0 < float(row["after prompt"]) < 0.05


def test_a_wrong_row_stands_out() -> None:
    exact = [torch.randn(3, 50) for _ in range(3)]
    fast = [rows.clone() for rows in exact]
    assert compare(exact, fast)["decoded, largest"] == 0
    fast[2][1] = -exact[2][1]
    found = compare(exact, fast)
    assert found["decoded, largest"] > 0.5 and found["decoded, median"] == 0 and found["same choice"] < 1
