from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from slipstream_kernels.models.checkpoint.adapter.lora_adapter import LoraAdapter, read_adapter
from slipstream_kernels.models.checkpoint.config_fields import CheckpointError
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from support.lora_adapters import write_adapter
from support.models import make_tiny_model

Q_A = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


def read(model: Path, folder: Path, **options: Any) -> LoraAdapter:
    return read_adapter(write_adapter(folder, model, **options), ModelConfig.from_folder(model))


def test_weights_are_rounded_and_scaled(tiny_model: Path, tmp_path: Path) -> None:
    given = torch.full((8, 128), 1.00390625 + 2**-12)
    adapter = read(tiny_model, tmp_path, targets=("q_proj", "down_proj"), tensors={Q_A: given}, lora_alpha=24)
    assert sorted(adapter.weights) == [
        f"model.layers.{layer}.{module}" for layer in range(2) for module in ("mlp.down_proj", "self_attn.q_proj")
    ]
    weight = adapter.weights["model.layers.0.self_attn.q_proj"]
    assert weight.a.dtype == weight.b.dtype == torch.bfloat16
    assert torch.equal(weight.a, given.bfloat16())
    assert (weight.rank, weight.scale, adapter.rank) == (8, 3.0, 8)


def test_the_fingerprint_is_of_what_is_computed(tiny_model: Path, tmp_path: Path) -> None:
    first = read(tiny_model, tmp_path / "a")
    assert first.fingerprint == read(tiny_model, tmp_path / "b", lora_dropout=0.5).fingerprint
    others = [
        read(tiny_model, tmp_path / "c", seed=1),
        read(tiny_model, tmp_path / "d", lora_alpha=17),
        read(tiny_model, tmp_path / "e", targets=("q_proj",)),
    ]
    assert len({each.fingerprint for each in (first, *others)}) == 4


@pytest.mark.parametrize("family", ["phi3", "qwen3"])
def test_fused_projections_are_taken_apart(family: str, tmp_path: Path) -> None:
    targets = ("qkv_proj", "gate_up_proj") if family == "phi3" else ("q_proj", "gate_proj")
    model = make_tiny_model(tmp_path / "model", family=family, heads=4, kv_heads=2, tied=False)
    adapter = read(model, tmp_path / "adapter", targets=targets)
    config = ModelConfig.from_folder(model)
    q = adapter.weights["model.layers.1.self_attn.q_proj"]
    assert q.b.shape == (config.q_size, 8)
    if family == "phi3":
        k, up = (adapter.weights[f"model.layers.1.{name}_proj"] for name in ("self_attn.k", "mlp.up"))
        assert k.b.shape == (config.kv_size, 8) and up.b.shape == (config.intermediate_size, 8)
        assert torch.equal(q.a, k.a)
    else:
        assert "model.layers.1.self_attn.k_proj" not in adapter.weights


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({Q_A: None}, [Q_A, "missing"]),
        ({Q_A: torch.zeros(9, 128)}, [Q_A, "[9, 128]", "[8, 128]"]),
        ({Q_A: torch.full((8, 128), float("nan"))}, [Q_A, "NaN"]),
        ({Q_A: torch.full((8, 128), 3.4e38)}, [Q_A, "infinity"]),
        ({Q_A: torch.zeros(8, 128, dtype=torch.int32)}, [Q_A, "I32"]),
        ({"base_model.model.lm_head.lora_A.weight": torch.zeros(8, 128)}, ["lm_head.lora_A"]),
        ({Q_A.replace("lora_A.weight", "lora_magnitude_vector"): torch.zeros(128)}, ["lora_magnitude_vector"]),
        ({Q_A.replace("layers.0", "layers.7"): torch.zeros(8, 128)}, ["layers.7"]),
        ({"base_model.model.model.embed_tokens.lora_embedding_A": torch.zeros(8, 512)}, ["lora_embedding_A"]),
    ],
)
def test_tensors_that_do_not_fit(tensors: dict[str, Any], words: list[str], tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        read(tiny_model, tmp_path, tensors=tensors)
    assert all(word in str(caught.value) for word in ["adapter_model.safetensors", *words])


def test_pickled_weights_are_not_read(tiny_model: Path, tmp_path: Path) -> None:
    write_adapter(tmp_path, tiny_model)
    (tmp_path / "adapter_model.safetensors").rename(tmp_path / "adapter_model.bin")
    with pytest.raises(CheckpointError, match=r"adapter_model\.bin, which may run code"):
        read_adapter(tmp_path, ModelConfig.from_folder(tiny_model))
