"""What the target is asked for: its distribution, or more of its most likely token."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from slipstream_kernels.models.checkpoint.model_config import CheckpointError
from support.families import EXPERTS
from support.fit_sources import SHAPE, small_target
from support.models import make_tiny_model
from support.quantised_models import FORMS, write_quantised
from training.fit.settings import FitSettings
from training.fit.target import TargetRows


@pytest.mark.parametrize("scored", [None, torch.arange(0, SHAPE.vocab_size, 3)])
def test_part_of_the_distribution_moves_to_its_most_likely_token(scored: torch.Tensor | None, tmp_path: Path) -> None:
    model = small_target(tmp_path)
    target = TargetRows(tmp_path, torch.device("cpu"), torch.float32)
    states = torch.randn(9, SHAPE.hidden_size, generator=torch.Generator().manual_seed(0))
    logits = states @ model.model.embed_tokens.weight.T
    wanted = (logits if scored is None else logits[:, scored]).softmax(dim=-1)
    hard = torch.nn.functional.one_hot(wanted.argmax(dim=-1), wanted.shape[1])
    for weight in (0.0, 0.3, 1.0):
        verdict = target.judge(states, scored, weight)
        assert torch.allclose(verdict.probabilities, (1 - weight) * wanted + weight * hard, atol=1e-6)
        assert torch.equal(verdict.best, logits.argmax(dim=-1))


@pytest.mark.parametrize("weight", [-0.1, 1.5])
def test_a_weight_that_is_no_part_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="argmax_weight"):
        FitSettings(argmax_weight=weight)


def test_a_target_that_scales_its_embedding_is_refused(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", family="gemma2")
    with pytest.raises(CheckpointError, match="no heads are trained for a gemma2"):
        TargetRows(folder, torch.device("cpu"), torch.float32)


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_a_target_with_experts_has_no_last_network(name: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", **EXPERTS[name])
    layer = TargetRows(folder, torch.device("cpu"), torch.float32).last_layer()
    assert "self_attn.q_proj.weight" in layer and not any(each.startswith("mlp.") for each in layer)


def test_a_target_of_fused_projections_is_read_in_parts(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", family="phi3")
    layer = TargetRows(folder, torch.device("cpu"), torch.float32).last_layer()
    assert layer["self_attn.k_proj.weight"].shape == (64, 128) and layer["mlp.up_proj.weight"].shape == (192, 128)


def test_a_quantised_target_is_the_model_it_decodes_to(tmp_path: Path) -> None:
    folder = write_quantised(make_tiny_model(tmp_path / "source", tied=False), tmp_path / "model", FORMS["gptq v2"])
    got, expected = (
        TargetRows(each, torch.device("cpu"), torch.float32) for each in (folder, tmp_path / "model-plain")
    )
    assert torch.equal(got.head, expected.head) and torch.equal(got.final_norm(), expected.final_norm())
    layers = got.last_layer(), expected.last_layer()
    assert layers[0].keys() == layers[1].keys()
    assert all(torch.equal(layers[0][name], layers[1][name]) for name in layers[1])
