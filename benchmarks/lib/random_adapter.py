"""Random LoRA adapters as PEFT saves them, strong enough to change what a model says."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from slipstream_kernels.models.checkpoint.adapter.lora_adapter import WEIGHTS, adaptable_modules
from slipstream_kernels.models.checkpoint.model_config import ModelConfig


def write_random_adapter(folder: Path, model: Path, *, seed: int, rank: int, strength: float) -> Path:
    """Write an adapter of all projections of the model in `model` into a new folder, and return it.

    strength: of what is added, beside an input of norm 1 a dimension and a layer whose output is about as large.
    """
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    modules = adaptable_modules(ModelConfig.from_folder(model))
    for name, (outputs, inputs) in modules.items():
        a = torch.randn(rank, inputs, generator=generator) * inputs**-0.5
        b = torch.randn(outputs, rank, generator=generator) * strength * rank**-0.5
        tensors[f"base_model.model.{name}.lora_A.weight"] = a.bfloat16()
        tensors[f"base_model.model.{name}.lora_B.weight"] = b.bfloat16()
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": rank,
        "target_modules": sorted({name.rpartition(".")[2] for name in modules}),
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    save_file(tensors, folder / WEIGHTS)
    return folder
