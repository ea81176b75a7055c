"""Random LoRA adapters in PEFT's layout, and models into which they were merged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from slipstream_kernels.models.checkpoint.adapter.lora_adapter import LoraAdapter, adaptable_modules
from slipstream_kernels.models.checkpoint.model_config import ModelConfig

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def write_adapter(
    folder: Path,
    model: Path,
    *,
    seed: int = 0,
    rank: int = 8,
    targets: Sequence[str] = ALL,
    ranks: Mapping[str, int] | None = None,
    strength: float = 1.0,
    dtype: torch.dtype = torch.float32,
    tensors: Mapping[str, torch.Tensor | None] | None = None,
    **fields: Any,
) -> Path:
    """Write an adapter of the model's projections whose names end in `targets`, and return its folder.

    `ranks` are those of other ends of names; `fields` replace or add fields of the config, `tensors` tensors (None
    takes one away). `strength`: of what is added, beside about 1 of the layer's own output.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": list(targets),
        "bias": "none",
        "lora_dropout": 0.05,
        "init_lora_weights": True,
        **fields,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, torch.Tensor] = {}
    for name, (outputs, inputs) in adaptable_modules(ModelConfig.from_folder(model)).items():
        if name.endswith(tuple(targets)):
            own = next((value for end, value in (ranks or {}).items() if name.endswith(end)), rank)
            a = torch.randn(own, inputs, generator=generator) * inputs**-0.5
            b = torch.randn(outputs, own, generator=generator) * 0.5 * strength * own**-0.5
            weights[f"base_model.model.{name}.lora_A.weight"] = a.to(dtype)
            weights[f"base_model.model.{name}.lora_B.weight"] = b.to(dtype)
    weights |= {name: tensor for name, tensor in (tensors or {}).items() if tensor is not None}
    gone = [name for name, tensor in (tensors or {}).items() if tensor is None]
    save_file({name: each for name, each in weights.items() if name not in gone}, folder / "adapter_model.safetensors")
    return folder


def merge(target: Path, model: Path, adapter: LoraAdapter) -> Path:
    """A copy of a model's folder, in float32, whose weights are W + B A * scale."""
    shutil.copytree(model, target)
    weights = {name: tensor.float() for name, tensor in load_file(model / "model.safetensors").items()}
    for module, lora in adapter.weights.items():
        added = lora.b.double() @ lora.a.double() * lora.scale
        weights[f"{module}.weight"] = (weights[f"{module}.weight"].double() + added).float()
    save_file(weights, target / "model.safetensors", {"format": "pt"})
    return target
