"""Tensors of a checkpoint folder, whichever of the usual files hold them."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from slipstream_kernels.models.checkpoint import weight_files
from slipstream_kernels.models.config import CheckpointError, read_json


def read_tensors(folder: Path, only: Collection[str] | None = None) -> dict[str, torch.Tensor]:
    """All tensors of a folder as stored, or those named by `only` that it has.

    Safetensors files are preferred; pytorch_model.bin, whole or with an index, is read as tensors alone: a file that
    would run code is refused. Raises CheckpointError.
    """
    if (folder / "model.safetensors").exists() or (folder / "model.safetensors.index.json").exists():
        return _read_safetensors(weight_files(folder), only)
    tensors: dict[str, torch.Tensor] = {}
    for path in _bin_files(folder):
        content = load_pickled(path)
        if not isinstance(content, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in content.values()):
            raise CheckpointError(f"{path}: not a dictionary of tensors")
        tensors.update({name: tensor for name, tensor in content.items() if only is None or name in only})
    return tensors


def load_pickled(path: Path) -> Any:
    """What torch.save wrote, of tensors and plain containers alone. Raises CheckpointError."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a file that is none makes torch raise whatever its parser runs into
        raise CheckpointError(f"{path}: {error}") from error


def _read_safetensors(paths: list[Path], only: Collection[str] | None) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for path in paths:
        try:
            with safe_open(path, framework="pt") as file:
                names = [name for name in file.keys() if only is None or name in only]  # noqa: SIM118 (no mapping)
                tensors.update({name: file.get_tensor(name) for name in names})
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path}: {error}") from error
    return tensors


def _bin_files(folder: Path) -> list[Path]:
    index = folder / "pytorch_model.bin.index.json"
    if not index.exists():
        if not (folder / "pytorch_model.bin").exists():
            raise CheckpointError(f"{folder}: no model.safetensors, no pytorch_model.bin and no index of either")
        return [folder / "pytorch_model.bin"]
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise CheckpointError(f"{index}: weight_map is missing")
    names = sorted(set(weight_map.values()))
    if any(Path(name).name != name for name in names):
        raise CheckpointError(f"{index}: weight_map names files outside the folder")
    return [folder / name for name in names]
