"""A dense model widened to a mixture computes what it computed, and wakes all experts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.inflate.__main__ import main
from benchmarks.inflate.dense_as_mixture import as_experts, as_mixture
from benchmarks.inflate.shape import QWEN3_30B_A3B, Shape, ShapeError, check
from benchmarks.inflate.tensors import Inflation
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.checkpoint.weight_loader import expected_shapes, load_tensors
from support.folder_logits import folder_logits
from support.models import make_tiny_model

WIDE = Shape(640, 3, 4, 2, 32, 96, 600, 512, experts=16, experts_per_token=4)
FLAGS = {
    "hidden": 640, "layers": 3, "heads": 4, "kv-heads": 2, "head-dim": 32, "intermediate": 96, "vocab": 600,
    "context": 512, "experts": 16, "experts-per-token": 4,
}  # fmt: skip


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(
        tmp_path_factory.mktemp("models") / "dense", heads=4, kv_heads=2, intermediate_size=256, max_context=512
    )


def widened(dense: Path, folder: Path, *more: str) -> Path:
    config = ModelConfig.from_folder(dense)
    flags = FLAGS | {"head-dim": config.head_dim, "hidden": 5 * config.hidden_size, "layers": config.num_layers + 1}
    assert main([str(folder), "--model", str(dense), *(str(part) for name, size in flags.items()
                 for part in (f"--{name}", size)), *more]) == 0  # fmt: skip
    return folder


def test_tokens_are_the_dense_models(dense: Path, tmp_path: Path) -> None:
    folder = widened(dense, tmp_path / "wide")
    config = ModelConfig.from_folder(folder)
    experts = config.form.experts
    assert config.family == "mixtral" and experts is not None
    assert (experts.count, experts.chosen, experts.size) == (16, 4, 96)
    assert load_tensors(folder, config).keys() == dict(expected_shapes(config)).keys()
    vocab = ModelConfig.from_folder(dense).vocab_size
    tokens = np.random.default_rng(0).integers(4, vocab, 200).tolist()
    expected, found = folder_logits(dense, tokens), folder_logits(folder, tokens)
    top = np.sort(expected, axis=1)
    clear = top[:, -1] - top[:, -2] > 0.1 * expected.std()
    assert clear.mean() > 0.5 and (found.argmax(axis=1) == expected.argmax(axis=1))[clear].all()
    assert np.abs(found[:, :vocab] - expected).mean() < 0.02 * expected.std()


@pytest.mark.parametrize("form", ["fp8", "w4a16"])
def test_a_rounded_mixture_is_served(dense: Path, tmp_path: Path, form: str) -> None:
    folder = widened(dense, tmp_path / "rounded", "--format", form, "--group", "32")
    assert np.isfinite(folder_logits(folder, [5, 6, 7])).all()


def test_experts_are_parts_of_the_network(dense: Path) -> None:
    source = ModelConfig.from_folder(dense)
    mixture, tensors = as_mixture(source, WIDE), load_tensors(dense, source)
    parts = as_experts(tensors, mixture)
    assert parts.keys() == {name for name, _ in expected_shapes(mixture)} - {"lm_head.weight"}
    x = torch.randn(3, source.hidden_size)
    before = "model.layers.1.mlp."

    def network(prefix: str, weights: dict[str, torch.Tensor]) -> torch.Tensor:
        gate, up, down = (weights[f"{prefix}{name}_proj.weight"].float() for name in ("gate", "up", "down"))
        return (torch.nn.functional.silu(x @ gate.T) * (x @ up.T)) @ down.T

    said = sum(network(f"{before}experts.{expert}.", parts) for expert in range(4)) / 4
    torch.testing.assert_close(said, network(before, tensors))


def test_text_wakes_all_experts(dense: Path) -> None:
    config = ModelConfig.from_folder(dense)
    shape = replace(WIDE, hidden_size=5 * config.hidden_size, head_dim=config.head_dim, num_layers=config.num_layers)
    tensors = dict(Inflation(dense, shape).tensors())
    x = tensors["model.embed_tokens.weight"][: config.vocab_size].float()
    normed = x / x.square().mean(dim=1, keepdim=True).add(1e-5).sqrt()
    normed *= tensors["model.layers.0.post_attention_layernorm.weight"].float()
    chosen = (normed @ tensors["model.layers.0.mlp.gate.weight"].float().T).topk(4, dim=1).indices.sort(dim=1).values
    assert len(chosen.unique()) == 16
    assert (chosen // 4 == torch.arange(4)).all() and (chosen % 4 == chosen[:, :1] % 4).all()


def test_what_does_not_fit_is_refused(dense: Path, demo_model: Path) -> None:
    source = ModelConfig.from_folder(dense)
    for chosen, words in ((3, "256 is not divided among 3 experts"), (512, "not divided among 512")):
        with pytest.raises(ShapeError, match=words):
            as_mixture(source, replace(WIDE, experts_per_token=chosen))
    assert as_mixture(source, replace(WIDE, experts=0)) is source
    check(as_mixture(ModelConfig.from_folder(demo_model), QWEN3_30B_A3B), QWEN3_30B_A3B)
