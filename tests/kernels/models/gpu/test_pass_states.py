"""What passes keep of the residual stream: the right rows at the right boundaries, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from slipstream_kernels.models.gpu.batch.pass_plan import PassPlan
from slipstream_kernels.models.gpu.forward.ops_namespace import twins
from slipstream_kernels.models.gpu.gpu_model import GpuLimits, GpuModel

LIMITS = GpuLimits(
    max_running=2, max_nodes=8, step_nodes=8, prefill_chunk=64, num_pages=16, max_context=128, boundaries=3
)
TOKENS = np.random.default_rng(0).integers(3, 512, 40).astype(np.int32)


@pytest.fixture
def model(tiny_model: Path) -> GpuModel:
    """Two layers."""
    return GpuModel.load(tiny_model, LIMITS, device="cpu", ops=twins(), progress=False)


def chunk(model: GpuModel, first: int, end: int) -> PassPlan:
    model.set_pages(0, 0, np.arange(8, dtype=np.int32))
    return PassPlan.chunk(TOKENS[first:end], line=0, start=first, slots=np.arange(first, end, dtype=np.int32))


def states(model: GpuModel, first: int, end: int) -> torch.Tensor:
    rows = model.launch(chunk(model, first, end)).states()
    assert rows is not None
    return torch.from_numpy(rows.copy()).view(torch.bfloat16)


def test_states_are_those_of_transformers(tiny_model: Path, model: GpuModel) -> None:
    twin = transformers.AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    with torch.no_grad():
        streams = [s[0] for s in twin(torch.tensor(TOKENS[None]).long(), output_hidden_states=True).hidden_states]
    model.capture((0, 1, 3))  # 3 is behind the final norm, as is the last stream of transformers
    found = torch.cat([states(model, 0, 33), states(model, 33, 34), states(model, 34, 40)])
    for kept, stream in zip(found.unflatten(1, (3, -1)).unbind(1), streams, strict=True):
        apart = torch.linalg.norm(kept.float() - stream, dim=1) / torch.linalg.norm(stream, dim=1)
        assert float(apart.max()) < 0.02
    assert torch.equal(found[:, : model.config.hidden_size].float(), streams[0])


def test_results_keep_their_bits_and_nothing_is_kept_unasked(model: GpuModel) -> None:
    plain = model.launch(chunk(model, 0, 40))
    assert plain.states() is None
    tokens, logits = plain.results(), plain.logits.clone()
    model.capture((2,))
    kept = model.launch(chunk(model, 0, 40))
    assert np.array_equal(kept.results(), tokens)
    assert torch.equal(kept.logits, logits)
    model.capture(())
    assert model.launch(chunk(model, 0, 40)).states() is None
    assert kept.states() is not None


def test_expected_states_are_computed_unasked_and_change_nothing(tiny_model: Path, model: GpuModel) -> None:
    limits = replace(LIMITS, expected_boundaries=(1, 3))
    expecting = GpuModel.load(tiny_model, limits, device="cpu", ops=twins(), progress=False)
    first, plain = expecting.launch(chunk(expecting, 0, 40)), model.launch(chunk(model, 0, 40))
    assert first.states() is None
    assert np.array_equal(first.results(), plain.results())
    assert torch.equal(first.logits, plain.logits)
    for boundaries in ((1, 3), (2,)):
        for each in (model, expecting):
            each.capture(boundaries)
        assert torch.equal(states(expecting, 0, 40), states(model, 0, 40))
    expecting.capture(())
    assert expecting.launch(chunk(expecting, 0, 40)).states() is None


def test_more_expected_boundaries_than_there_is_room_for_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expected_boundaries are \(0, 1\), must be at most 1"):
        GpuLimits(boundaries=1, expected_boundaries=(0, 1))


def test_what_is_kept_of_buckets_does_not_grow_with_the_boundaries_tried(model: GpuModel) -> None:
    for _ in range(2):
        for boundaries in ((0,), (1, 2), (2, 1), (3, 0, 1), ()):
            model.capture(boundaries)
            for first, end in ((0, 5), (5, 6)):
                kept = model.launch(chunk(model, first, end)).states()
                assert kept is None if not boundaries else kept is not None and len(kept) == end - first
    assert len(model._layout.__self__._made) == len(model._buckets.all())  # type: ignore[attr-defined]
    assert {bucket.boundaries for bucket in model._pool._buffers} <= {(), (3, 0, 1)}


def test_who_is_back_finds_what_was_made_for_him(model: GpuModel) -> None:
    model.capture((1, 2))
    model.launch(chunk(model, 0, 5)).states()
    made = {bucket: buffers for bucket, buffers in model._pool._buffers.items() if bucket.boundaries}
    model.capture(())
    model.capture((1, 2))
    kept = model.launch(chunk(model, 0, 5)).states()
    assert kept is not None and kept.shape == (5, 2 * model.config.hidden_size)
    assert made and all(model._pool._buffers[bucket] is buffers for bucket, buffers in made.items())


def test_states_are_gone_once_their_memory_is_used_again(model: GpuModel) -> None:
    model.capture((1,))
    first = model.launch(chunk(model, 0, 5))
    expected = states(model, 0, 5).view(torch.uint16).numpy()
    rows = first.states()
    assert rows is not None and np.array_equal(rows, expected)
    assert first.states() is rows
    for _ in range(2):
        model.launch(chunk(model, 5, 6))
    assert first.states() is None


def test_what_was_not_prepared_for_is_refused(tiny_model: Path, model: GpuModel) -> None:
    for boundaries in ((0, 1, 2, 3), (4,), (-1,)):
        with pytest.raises(ValueError, match="boundaries"):
            model.capture(boundaries)
    assert model.launch(chunk(model, 0, 5)).states() is None


def test_a_pass_of_fewer_layers_still_keeps_states_at_every_boundary(model: GpuModel) -> None:
    model.capture((0, 1, 3))
    model.launch(chunk(model, 0, 40)).results()
    bucket = model._buckets.find(40, 1, has_trees=False, has_prefill=True)._replace(boundaries=(0, 1, 3))
    kept = model._pool.of(bucket).states
    kept.fill_(float("inf"))
    model._run(bucket, layers=1)
    assert bool(kept[:40].isfinite().all())
