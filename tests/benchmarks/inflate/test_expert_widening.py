"""A widened mixture computes what the small one computes, and wakes all of its experts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.inflate.__main__ import main
from benchmarks.inflate.head import head_shapes
from benchmarks.inflate.shape import GPT_OSS_20B, QWEN3_30B_A3B, ExpertLayout, Shape, ShapeError, Stream, check
from benchmarks.inflate.tensors import Inflation
from slipstream_kernels.models.checkpoint.expert_form import ExpertForm
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.checkpoint.weight_loader import expected_shapes, load_tensors
from support.folder_logits import folder_logits
from training.common.mixture_model import MixtureLM
from training.common.model import initialise
from training.common.model_shape import MixtureShape
from training.demo_models.export import export
from training.demo_models.tokenizer import train_tokenizer

SMALL = MixtureShape(320, 64, 2, 2, 1, 32, 64, max_positions=512, experts=4, experts_per_token=2)
WIDE = Shape(320, 3, 4, 1, 32, 128, 400, 512, experts=32, experts_per_token=4)
"""Four blocks and room beside them; two copies of each of four variants of each expert."""
FLAGS = {
    "hidden": 320, "layers": 3, "heads": 4, "kv-heads": 1, "head-dim": 32, "intermediate": 128, "vocab": 400,
    "context": 512, "experts": 32, "experts-per-token": 4,
}  # fmt: skip


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = MixtureLM(SMALL, torch.float32)
    initialise(model, 0)
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.data += torch.randn(parameter.shape, generator=generator) * 0.1
    folder = tmp_path_factory.mktemp("models") / "small"
    words = (
        "slipstream",
        "rider",
        "carries",
        "another",
        "along",
        "fields",
        "hills",
        "road",
        "river",
        "harbour",
        "quiet",
    )
    texts = (" ".join(words[i * j % 11] for j in range(1, 12)) + f" {i}" for i in range(400))
    export(model, train_tokenizer(texts, 320), folder)
    return folder


@pytest.fixture(scope="module")
def wide(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "wide"
    flags = [part for name, size in FLAGS.items() for part in (f"--{name}", str(size))]
    assert main([str(folder), "--model", str(small), *flags]) == 0
    return folder


def test_tokens_are_the_small_mixtures(small: Path, wide: Path) -> None:
    tokens = np.random.default_rng(0).integers(4, 320, 300).tolist()
    expected, found = folder_logits(small, tokens), folder_logits(wide, tokens)
    np.testing.assert_allclose(found[:, :320], expected, atol=1e-3)
    assert found[:, 320:].max() < -1000
    top = np.sort(expected, axis=1)
    clear = top[:, -1] - top[:, -2] > 2e-3
    assert clear.mean() > 0.9 and (found.argmax(axis=1) == expected.argmax(axis=1))[clear].all()


def test_the_folder_is_whole_and_says_what_it_is(wide: Path) -> None:
    config = ModelConfig.from_folder(wide)
    experts = config.form.experts
    assert experts is not None
    assert (experts.count, experts.chosen, experts.size, experts.layers) == (32, 4, 128, (True,) * 3)
    assert load_tensors(wide, config).keys() == dict(expected_shapes(config)).keys()


def test_text_wakes_all_variants_and_all_copies_of_what_it_wakes(small: Path) -> None:
    """By the router of the first layer, on the embedding's own norm: which rows are chosen."""
    tensors = dict(Inflation(small, WIDE).tensors())
    x = tensors["model.embed_tokens.weight"][:320].float()
    normed = x / x.square().mean(dim=1, keepdim=True).add(1e-5).sqrt()
    normed *= tensors["model.layers.0.post_attention_layernorm.weight"].float()
    scores = normed @ tensors["model.layers.0.mlp.gate.weight"].float().T
    chosen = scores.topk(4, dim=1).indices.sort(dim=1).values
    assert len(chosen.unique()) == 32
    assert torch.equal(chosen[:, 0] + 1, chosen[:, 1]) and torch.equal(chosen[:, 2] + 1, chosen[:, 3])
    variants = chosen // 2 % 4
    assert torch.equal(variants[:, 0], variants[:, 2])


def test_known_mixtures_have_room() -> None:
    experts = ExpertForm(8, 2, 512, (True,) * 8, normalised=True)
    for shape, copies, variants in ((QWEN3_30B_A3B, 4, 4), (GPT_OSS_20B, 2, 2)):
        layout = ExpertLayout.of(experts, shape, Stream.layout(384, shape.hidden_size))
        assert (layout.copies, layout.variants, layout.sets) == (copies, variants, 8)
        assert layout.marks.stop < shape.hidden_size


def test_a_head_of_a_mixture_is_widened_as_a_dense_layer(small: Path, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(2)
    shapes = head_shapes(Shape(64, 1, 2, 1, 32, 96), 3, 320)
    (tmp_path / "head").mkdir()
    weights = {name: torch.randn(size, generator=generator).bfloat16() for name, size in shapes.items()}
    save_file(weights, tmp_path / "head" / "model.safetensors")
    config = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
    config |= {"intermediate_size": 96, "eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    (tmp_path / "head" / "config.json").write_text(json.dumps(config))
    flags = [part for name, size in FLAGS.items() for part in (f"--{name}", str(size))]
    places = [str(tmp_path / "wide"), "--model", str(small), "--head", str(tmp_path / "head")]
    assert main([*places, "--draft-vocab", "330", *flags]) == 0
    found = load_file(tmp_path / "wide" / "model-00001.safetensors")
    assert found["midlayer.mlp.gate_proj.weight"].shape == (960, 320) and found["fc.weight"].shape == (320, 960)


def test_what_does_not_fit_is_refused(small: Path, tiny_model: Path) -> None:
    source = ModelConfig.from_folder(small)
    for shape, words in (
        (replace(WIDE, experts_per_token=3), "2 of 4 experts cannot become 3 of 32"),
        (replace(WIDE, experts=36), "cannot become 4 of 36"),
        (replace(WIDE, hidden_size=196), "no room for a coordinate of each of 4 variants"),
        (replace(WIDE, experts=0), "0 experts are wanted of a model of 4"),
        (replace(WIDE, intermediate_size=32), "intermediate_size is 64, which cannot become 32"),
    ):
        with pytest.raises(ShapeError, match=words):
            check(source, shape)
    with pytest.raises(ShapeError, match="32 experts are wanted of a model of 0"):
        check(ModelConfig.from_folder(tiny_model), replace(WIDE, head_dim=64))
