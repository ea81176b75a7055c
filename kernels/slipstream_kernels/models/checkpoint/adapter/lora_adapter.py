"""A LoRA adapter in a folder of PEFT, read and checked against the model that it is for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from slipstream_kernels.models.checkpoint.adapter.adapter_config import MOST_RANK, ModulePlan, read_adapter_config
from slipstream_kernels.models.checkpoint.adapter.pace import Pace
from slipstream_kernels.models.checkpoint.config_fields import CheckpointError, shown
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.checkpoint.tensor_names import computed, stored_shapes
from slipstream_kernels.models.checkpoint.text_part import text_prefix
from slipstream_kernels.models.checkpoint.weight_file import FLOATS, WeightFile, open_weights
from slipstream_kernels.ops.lora.lora_weight import LoraWeight

WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_EXPONENT = 0x7F80
"""Bits of a bfloat16 that are all set in infinity and in what is no number."""
_PROJECTION_PARTS = 6
"""Of a name such as model.layers.0.mlp.up_proj.weight; those of experts have more."""


@dataclass(frozen=True, slots=True, eq=False)
class LoraAdapter:
    """Weights by the name of a projection as the model computes with it, such as `model.layers.0.self_attn.q_proj`.

    Projections that a folder holds as one are several here, which share A. `fingerprint` is the sha256, in hexadecimal,
    of all that decides what the adapter computes; `rank` the largest.
    """

    weights: Mapping[str, LoraWeight]
    rank: int
    fingerprint: str


def adaptable_modules(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """[outputs, inputs] of a model's projections by their names in its folder."""
    modules = {}
    for name, shape in stored_shapes(config):
        parts = name.removeprefix(text_prefix(config.family)).split(".")
        if len(parts) == _PROJECTION_PARTS and name.endswith("_proj.weight"):
            modules[name.removesuffix(".weight")] = (shape[0], shape[1])
    return modules


def read_adapter(
    folder: Path, config: ModelConfig, most_rank: int = MOST_RANK, pace: Pace | None = None
) -> LoraAdapter:
    """Read a folder with adapter_config.json and adapter_model.safetensors, at a `pace` if others are in a hurry.

    Wider types are rounded to bfloat16. Raises CheckpointError for what is not supported, for ranks above `most_rank`,
    and unless the tensors are those that the config names, of the model's shapes, and finite.
    """
    modules = adaptable_modules(config)
    plans = read_adapter_config(folder, modules, most_rank)
    path = folder / WEIGHTS
    if not path.exists() and (folder / "adapter_model.bin").exists():
        raise CheckpointError(f"{path} is missing; adapter_model.bin, which may run code, is not read")
    weights: dict[str, LoraWeight] = {}
    with open_weights(path) as file:
        _check_names(path, file, plans)
        for module, plan in plans.items():
            found = dict(_weights(config, path, file, module, plan, modules[module]))
            weights.update(found)
            if pace is not None:
                pace.add(sum(map(_size, found.values())))
    return LoraAdapter(weights, max(plan.rank for plan in plans.values()), _fingerprint(weights, pace))


def _tensor_names(module: str) -> tuple[str, str]:
    return f"{_PREFIX}{module}.lora_A.weight", f"{_PREFIX}{module}.lora_B.weight"


def _check_names(path: Path, file: WeightFile, plans: Mapping[str, ModulePlan]) -> None:
    wanted = {name for module in plans for name in _tensor_names(module)}
    if unexpected := sorted(set(file.names) - wanted):
        raise CheckpointError(
            f"{path}: {shown(unexpected[0])} and {len(unexpected) - 1} other tensors are not lora_A and lora_B of "
            f"projections that target_modules names"
        )
    if missing := sorted(wanted - set(file.names)):
        raise CheckpointError(f"{path}: {missing[0]} and {len(missing) - 1} other tensors are missing")


def _weights(
    config: ModelConfig, path: Path, file: WeightFile, module: str, plan: ModulePlan, shape: tuple[int, int]
) -> Iterator[tuple[str, LoraWeight]]:
    """Of one module of the folder, under the names that the model computes with."""
    outputs, inputs = shape
    name_a, name_b = _tensor_names(module)
    a = _read(path, file, name_a, (plan.rank, inputs))
    b = _read(path, file, name_b, (outputs, plan.rank))
    for name, part in computed(config, f"{module}.weight", b):
        assert isinstance(part, torch.Tensor)
        yield name.removesuffix(".weight"), LoraWeight(a, part.contiguous(), float(np.float32(plan.scale)))


def _read(path: Path, file: WeightFile, name: str, shape: tuple[int, int]) -> torch.Tensor:
    if file.shape(name) != shape:
        raise CheckpointError(f"{path}: {name} has shape {list(file.shape(name))}, must be {list(shape)}")
    if file.dtype(name) not in FLOATS:
        raise CheckpointError(f"{path}: {name} has dtype {file.dtype(name)}, supported are {', '.join(FLOATS)}")
    tensor = file.read(name).to(torch.bfloat16).contiguous()
    if not _is_finite(tensor):
        raise CheckpointError(f"{path}: {name} holds NaN or infinity")
    return tensor


def _is_finite(tensor: torch.Tensor) -> bool:
    """Of bfloat16. By its bits, on this thread alone: torch's check takes all cores, and thirty times as long."""
    return bool(((tensor.view(torch.int16).numpy() & _EXPONENT) != _EXPONENT).all())


def _size(weight: LoraWeight) -> int:
    """In bytes."""
    return weight.a.nbytes + weight.b.nbytes


def _fingerprint(weights: Mapping[str, LoraWeight], pace: Pace | None) -> str:
    digest = hashlib.sha256()
    for name, weight in sorted(weights.items()):
        digest.update(f"{name} {weight.rank} {weight.scale.hex()}\n".encode())
        for tensor in (weight.a, weight.b):
            digest.update(tensor.view(torch.uint8).numpy().data)
        if pace is not None:
            pace.add(_size(weight))
    return digest.hexdigest()
