"""Tensors of a checkpoint folder, whichever of the usual files hold them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import torch

from draft_service.heads.pickled import load_pickled
from draft_service.heads.quantised import decoded_name, decoded_tensors, quantised_modules
from slipstream_kernels.models.checkpoint.config_fields import CheckpointError
from slipstream_kernels.models.checkpoint.quantisation.scheme import Quantisation
from slipstream_kernels.models.checkpoint.weight_file import open_weights
from slipstream_kernels.models.checkpoint.weight_loader import weight_files

_SAFETENSORS = ".safetensors"
USUAL_FILES = ("model.safetensors", "pytorch_model.bin")
"""Where weights lie if not in several files, the preferred first; several have an index named after it."""


def read_tensors(
    folder: Path,
    only: Collection[str] | None = None,
    *,
    singles: Sequence[str] = USUAL_FILES,
    quantisation: Quantisation | None = None,
) -> dict[str, torch.Tensor]:
    """All tensors of a folder, or those named by `only` that it has: as stored, but quantised weights decoded.

    singles: files that may hold them, the preferred first. What torch.save wrote, whole or with an index, is read as
    tensors alone: a file that would run code is refused. Raises CheckpointError.
    """
    if quantisation is None:
        return _read_stored(folder, only, singles)
    names = _stored_names(folder, singles)
    modules = quantised_modules(names, quantisation)
    wanted = [name for name in names if only is None or decoded_name(name, modules) in only]
    return decoded_tensors(_read_stored(folder, wanted, singles, quantised=True), modules)


def tensor_names(
    folder: Path, *, singles: Sequence[str] = USUAL_FILES, quantisation: Quantisation | None = None
) -> list[str]:
    """Names of all tensors of a folder, whose files are found as by `read_tensors`. Raises CheckpointError."""
    names = _stored_names(folder, singles)
    modules = quantised_modules(names, quantisation)
    return list(dict.fromkeys(decoded_name(name, modules) for name in names))


def _read_stored(
    folder: Path, only: Collection[str] | None, singles: Sequence[str], *, quantised: bool = False
) -> dict[str, torch.Tensor]:
    single, files = _weights(folder, singles)
    if single.endswith(_SAFETENSORS):
        return _read_safetensors(files, only, quantised=quantised)
    tensors: dict[str, torch.Tensor] = {}
    for path in files:
        content = load_pickled(path)
        if not isinstance(content, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in content.values()):
            raise CheckpointError(f"{path}: not a dictionary of tensors")
        tensors.update({name: tensor for name, tensor in content.items() if only is None or name in only})
    return tensors


def _stored_names(folder: Path, singles: Sequence[str]) -> list[str]:
    single, files = _weights(folder, singles)
    if not single.endswith(_SAFETENSORS):
        return list(_read_stored(folder, None, singles))
    names: list[str] = []
    for path in files:
        with open_weights(path) as file:
            names.extend(file.names)
    return names


def _weights(folder: Path, singles: Sequence[str]) -> tuple[str, list[Path]]:
    """Which of `singles`, whole or in several files, holds the weights, and the files."""
    present = [name for name in singles if any(folder.glob(f"{name}*"))]
    if not present:
        raise CheckpointError(f"{folder}: none of {', '.join(singles)}, and no index of one")
    return present[0], weight_files(folder, present[0])


def _read_safetensors(
    paths: list[Path], only: Collection[str] | None, *, quantised: bool = False
) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for path in paths:
        with open_weights(path) as file:
            wanted = [name for name in file.names if only is None or name in only]
            tensors.update({name: file.read(name, quantised=quantised) for name in wanted})
    return tensors
