"""Tensors of a checkpoint folder, whichever of the usual files hold them."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from slipstream_kernels.models.checkpoint import weight_files
from slipstream_kernels.models.config import CheckpointError

_SAFETENSORS = "model.safetensors"
_SINGLE_FILES = (_SAFETENSORS, "pytorch_model.bin")
"""Where weights lie if not in several files, the preferred first; several have an index named after it."""


def read_tensors(folder: Path, only: Collection[str] | None = None) -> dict[str, torch.Tensor]:
    """All tensors of a folder as stored, or those named by `only` that it has.

    Safetensors files are preferred; pytorch_model.bin, whole or with an index, is read as tensors alone: a file that
    would run code is refused. Raises CheckpointError.
    """
    present = [name for name in _SINGLE_FILES if any(folder.glob(f"{name}*"))]
    if not present:
        raise CheckpointError(f"{folder}: none of {', '.join(_SINGLE_FILES)}, and no index of one")
    files = weight_files(folder, present[0])
    if present[0] == _SAFETENSORS:
        return _read_safetensors(files, only)
    tensors: dict[str, torch.Tensor] = {}
    for path in files:
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
