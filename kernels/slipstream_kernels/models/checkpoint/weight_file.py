"""Safetensors files, of which nothing is believed before it is checked.

The library refuses headers that are too long, do not parse, or name bytes outside the file or twice; what it has no
rule for is checked here: that each is a regular file of its folder, and which types its tensors have.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from slipstream_kernels.models.checkpoint.config_fields import (
    LFS_POINTER,
    CheckpointError,
    read_json,
    refuse_pointer,
    regular_size,
    shown,
)

MOST_HEADER_BYTES = 100_000_000
"""The library's own limit."""

FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Types of weights that are not quantised, and their bytes."""
QUANTISED = {"F8_E4M3": 1}
"""Types that only quantised weights have, and their bytes; these have some of `INTEGERS` too."""
INTEGERS = {"BOOL": 1, "U8": 1, "I8": 1, "I16": 2, "I32": 4, "I64": 8}
"""Types of maps between vocabularies, and their bytes."""
_MOST_FILES = 1 << 12
"""Of an index."""


class WeightFile:
    """An open file. Errors are CheckpointError and name it."""

    __slots__ = ("_file", "_path", "names")

    def __init__(self, path: Path, file: Any) -> None:
        self._path = path
        self._file = file
        self.names: list[str] = list(file.keys())

    def dtype(self, name: str) -> str:
        """The type of a tensor, as the format calls it."""
        with _named(self._path):
            return str(self._file.get_slice(name).get_dtype())

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, of which nothing is read for that."""
        with _named(self._path):
            return tuple(self._file.get_slice(name).get_shape())

    def read(self, name: str, *, quantised: bool = False) -> torch.Tensor:
        """A tensor of whole or floating-point numbers, as stored; of `QUANTISED` types too where they are expected."""
        dtype = self.dtype(name)
        if dtype not in FLOATS and dtype not in INTEGERS and not (quantised and dtype in QUANTISED):
            raise CheckpointError(
                f"{self._path}: {name} has dtype {dtype}, supported are {', '.join((*FLOATS, *INTEGERS))}"
            )
        with _named(self._path):
            tensor: torch.Tensor = self._file.get_tensor(name)
            return tensor


@contextmanager
def open_weights(path: Path) -> Iterator[WeightFile]:
    """A safetensors file whose header is known to fit it. Raises CheckpointError."""
    header_size(path)
    with _named(path):
        opened = safe_open(path, framework="pt")
    with opened as file:
        yield WeightFile(path, file)


def header_size(path: Path) -> int:
    """Bytes of a file's header behind its first 8. Raises CheckpointError where the file cannot hold so many."""
    size = regular_size(path)
    with _named(path), path.open("rb") as file:
        beginning = file.read(len(LFS_POINTER))
        refuse_pointer(path, beginning)
        header = int.from_bytes(beginning[:8], "little")
    most = min(MOST_HEADER_BYTES, size - 8)
    if size < 8 or header > most:
        raise CheckpointError(f"{path}: the header has {header} bytes, the limit is {max(0, most)}")
    return header


def weight_files(folder: Path, single: str = "model.safetensors") -> list[Path]:
    """The files of a folder that hold its weights, in order of name: those of the index of `single`, or that one."""
    index = folder / f"{single}.index.json"
    if not index.exists():
        if not (folder / single).exists():
            raise CheckpointError(f"{folder}: neither {single} nor {index.name}")
        return [folder / single]
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: weight_map is missing")
    for name in weight_map.values():
        if not isinstance(name, str) or name in ("", ".", "..") or Path(name).name != name or not name.isprintable():
            raise CheckpointError(
                f"{index}: weight_map names {shown(name)}, which lies outside the folder or is no name"
            )
    names = sorted(set(weight_map.values()))
    if len(names) > _MOST_FILES:
        raise CheckpointError(f"{index}: weight_map names {len(names)} files, the limit is {_MOST_FILES}")
    return [folder / name for name in names]


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Errors of reading `path` within become a CheckpointError that names it."""
    try:
        yield
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"{path}: {error}") from error
