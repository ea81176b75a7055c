"""Random models of a family of their own: their folders are laid out as published ones, and served."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from benchmarks.inflate.__main__ import main
from benchmarks.inflate.shape import LLAMA_4_SCOUT
from benchmarks.inflate.tensors import RandomModel
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.checkpoint.tensor_names import expected_shapes
from slipstream_kernels.models.checkpoint.weight_loader import load_tensors
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.models.cpu.row_batch import RowBatch

SIZES = {
    "hidden": 128, "layers": 4, "heads": 4, "kv-heads": 2, "head-dim": 32, "intermediate": 64, "vocab": 6000,
    "context": 512, "experts": 4,
}  # fmt: skip
EXPERTS = "language_model.model.layers.3.feed_forward.experts."
MODULES = {f"{expert}.{part}_proj" for expert in range(4) for part in ("gate", "up", "down")}


def written(folder: Path, model: Path, *more: str) -> Path:
    flags = [part for name, size in SIZES.items() for part in (f"--{name}", str(size))]
    assert main([str(folder), "--random", "--shape", "llama-4-scout", "--model", str(model), *flags, *more]) == 0
    return folder


def headers(folder: Path) -> dict[str, tuple[list[int], str]]:
    found = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  # no mapping
                part = file.get_slice(name)
                found[name] = (part.get_shape(), part.get_dtype())
    return found


@pytest.fixture(scope="module")
def folders(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("scout")
    return {
        "bf16": written(place / "bf16", tiny_model),
        "fp8": written(place / "fp8", tiny_model, "--format", "fp8"),
    }


def test_experts_lie_as_published(folders: dict[str, Path]) -> None:
    whole, rounded = headers(folders["bf16"]), headers(folders["fp8"])
    assert whole[f"{EXPERTS}gate_up_proj"] == ([4, 128, 128], "BF16")
    assert whole[f"{EXPERTS}down_proj"] == ([4, 64, 128], "BF16")
    assert {name for name in rounded if name.startswith(EXPERTS)} == {
        f"{EXPERTS}{module}.{part}" for module in MODULES for part in ("weight", "weight_scale")
    }
    assert rounded[f"{EXPERTS}3.up_proj.weight"] == ([64, 128], "F8_E4M3")
    assert rounded[f"{EXPERTS}3.up_proj.weight_scale"] == ([64, 1], "F32")
    for name in ("lm_head.weight", "model.embed_tokens.weight", "model.layers.3.feed_forward.router.weight"):
        assert whole[f"language_model.{name}"] == rounded[f"language_model.{name}"]
        assert whole[f"language_model.{name}"][1] == "BF16"
    assert all(name.startswith("language_model.") for name in [*whole, *rounded])


@pytest.mark.parametrize("form", ["bf16", "fp8"])
def test_the_model_is_a_scout_and_generates(folders: dict[str, Path], tiny_model: Path, form: str) -> None:
    folder = folders[form]
    config = ModelConfig.from_folder(folder)
    experts = config.form.experts
    assert config.family == "llama4" and experts is not None and experts.weighs_inputs
    assert (experts.count, experts.chosen, experts.size, experts.shared_size) == (4, 1, 64, 64)
    assert config.form.still_layers == (False, False, False, True) and config.form.unit_norms
    assert config.fused_experts is (form == "bf16")
    assert load_tensors(folder, config).keys() == dict(expected_shapes(config)).keys()
    model = CausalLM.load(folder)
    cache = model.new_cache(num_pages=4, page_size=16, scratch_slots=0)
    tokens, pages = list(range(5, 45)), range(4)
    logits = np.array(model.forward(cache, RowBatch.chunk(tokens, 0, pages, 16)))
    spoken = ModelConfig.from_folder(tiny_model).vocab_size
    assert 0.5 < logits[:, :spoken].std() < 2.0
    awake = model.experts_awake
    for start in range(len(tokens), len(tokens) + 4):
        tokens.append(int(np.argmax(logits[-1])))
        logits = np.array(model.forward(cache, RowBatch.chunk(tokens[start:], start, pages, 16)))
    assert max(tokens) < spoken < config.vocab_size, "the tokenizer has a text for each"
    assert awake == 16 and model.experts_awake == 4, "40 rows wake all experts, one row one a layer"


def test_rounded_weights_are_those_that_are_not(folders: dict[str, Path]) -> None:
    whole, rounded = (load_tensors(folders[form], ModelConfig.from_folder(folders[form])) for form in ("bf16", "fp8"))
    for name, tensor in whole.items():
        if name.endswith(("norm.weight", "mlp.gate.weight")) or ".layers." not in name:
            assert tensor.equal(rounded[name]), name
        else:  # a number of three bits behind its first is off by a sixteenth at most
            assert not tensor.equal(rounded[name])
            torch.testing.assert_close(rounded[name], tensor, rtol=0.07, atol=1e-3)
    gates = [tensor for name, tensor in whole.items() if name.endswith("mlp.gate.weight")]
    assert len(gates) == 4 and not gates[0].equal(gates[1])


def test_the_shape_is_the_published_models(tiny_model: Path) -> None:
    config = RandomModel(tiny_model, LLAMA_4_SCOUT).config
    weights = sum(prod(shape) for _, shape in expected_shapes(config))
    assert weights == 107_769_861_120
    assert (config.num_layers, config.q_size, config.kv_size, config.form.chunk) == (48, 5120, 1024, 8192)


def test_weights_that_are_not_random_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "out"), "--shape", "llama-4-scout"]) == 1
    assert "a llama4 has tensors that are not widened: its weights are to be random" in capsys.readouterr().err


def test_the_tokenizer_and_ends_are_the_small_models(folders: dict[str, Path], tiny_model: Path) -> None:
    config, source = ModelConfig.from_folder(folders["fp8"]), ModelConfig.from_folder(tiny_model)
    assert config.eos_token_ids == source.eos_token_ids
    assert (folders["fp8"] / "tokenizer.json").read_bytes() == (tiny_model / "tokenizer.json").read_bytes()
    assert json.loads((folders["fp8"] / "config.json").read_text())["text_config"]["attention_chunk_size"] == 8192
