"""What torch.save wrote, read as tensors and plain containers alone."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from slipstream_kernels.models.checkpoint.config_fields import (
    LFS_POINTER,
    CheckpointError,
    refuse_pointer,
    regular_size,
    shown,
)


def load_pickled(path: Path) -> Any:
    """Tensors and plain containers; a file that would run code is refused. Raises CheckpointError.

    A file is refused as well whose content is larger than itself: an archive with compressed members, and a tensor that
    repeats its numbers.
    """
    regular_size(path)
    try:
        _check_members(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except Exception as error:  # a file that is none makes torch raise whatever its parser runs into
        raise CheckpointError(f"{path}: {error}") from error
    for tensor in _tensors(content):
        stored = tensor.untyped_storage().nbytes()
        if tensor.numel() * tensor.element_size() > stored:
            raise CheckpointError(f"{path}: a tensor of shape {shown(list(tensor.shape))} has {stored} bytes")
    return content


def _check_members(path: Path) -> None:
    """torch.save compresses nothing, so that a member which is compressed may be of any size."""
    with path.open("rb") as file:
        refuse_pointer(path, file.read(len(LFS_POINTER)))
    if not zipfile.is_zipfile(path):
        raise CheckpointError(f"{path}: not in torch's zip format, which torch.save writes since 1.6")
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.compress_type != zipfile.ZIP_STORED:
                raise CheckpointError(f"{path}: a compressed member, which torch.save does not write")


def _tensors(content: Any) -> Iterator[torch.Tensor]:
    """The tensors in a container of tensors, as deep as checkpoints nest them."""
    if isinstance(content, torch.Tensor):
        yield content
    elif isinstance(content, dict):
        yield from (value for value in content.values() if isinstance(value, torch.Tensor))
    elif isinstance(content, list | tuple):
        yield from (value for value in content if isinstance(value, torch.Tensor))
