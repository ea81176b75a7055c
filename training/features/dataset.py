"""Features on disk, memory-mapped: what is read of a shard is what is asked for."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from training.common.atomic_files import DamagedError, sha256_of
from training.features.source import FeatureSequence, TokenSequence
from training.features.texts import checked_index

INDEX: Final = "index.json"
FORMAT: Final = "slipstream-features"
VERSION: Final = 1


class FeatureSet:
    """A FeatureSource over a folder of features."""

    readers: Final = 4

    def __init__(self, folder: Path, model: Path | None = None) -> None:
        """`model`: the target's folder, if it is not where it was. DamagedError where something is missing."""
        index = read_index(folder)
        if index is None:
            raise DamagedError(f"{folder} has no {INDEX}: the run that writes it is not complete")
        if (index.get("format"), index.get("version")) != (FORMAT, VERSION):
            raise DamagedError(f"{folder / INDEX} is not of {FORMAT} version {VERSION}")
        self.folder = folder
        self.index: dict[str, Any] = index
        self.model = model or Path(index["model_path"])
        self.boundaries: tuple[int, ...] = tuple(index["boundaries"])
        self.hidden_size: int = index["hidden_size"]
        self.fingerprint: str = index["fingerprint"]
        self._shards = [_ShardReader(folder / shard["file"], shard["bytes"]) for shard in index["shards"]]
        self._firsts = np.cumsum([0, *(shard["sequences"] for shard in index["shards"])]).tolist()
        self.lengths: Sequence[int] = [length for shard in self._shards for length in shard.lengths]

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def check(self) -> None:
        """Compare all shards with their checksums."""
        for shard in self.index["shards"]:
            if sha256_of(self.folder / shard["file"]) != shard["sha256"]:
                raise DamagedError(f"{self.folder / shard['file']} is not what was written")

    def tokens(self, index: int) -> TokenSequence:
        """See FeatureSource."""
        shard, place = self._find(index)
        return shard.tokens(place)

    def __getitem__(self, index: int) -> FeatureSequence:
        """See FeatureSource. The states lie in the file, which is read as they are used."""
        shard, place = self._find(index)
        return shard.tokens(place).with_states(shard.states(place))

    def batch(self, indices: Sequence[int]) -> list[FeatureSequence]:
        """See FeatureSource."""
        return [self[index] for index in indices]

    def _find(self, index: int) -> tuple[_ShardReader, int]:
        checked_index(index, len(self))
        number = bisect_right(self._firsts, index) - 1
        return self._shards[number], index - self._firsts[number]


def read_index(folder: Path) -> dict[str, Any] | None:
    """The index of features that are complete."""
    file = folder / INDEX
    return json.loads(file.read_bytes()) if file.is_file() else None


def _opened(path: Path) -> Any:
    """A safetensors file, whose methods have no types."""
    return safe_open(path, framework="pt")


class _ShardReader:
    """One file."""

    def __init__(self, path: Path, size: int) -> None:
        if not path.is_file() or path.stat().st_size != size:
            raise DamagedError(f"{path} is not what was written")
        try:
            file = _opened(path)
            metadata = file.metadata()
            self._names: list[tuple[str, int, str]] = json.loads(metadata["sequences"])
            self._recorded = frozenset[int](json.loads(metadata.get("recorded", "[]")))
            self._offsets: list[int] = file.get_tensor("offsets").tolist()
            self._tensors: dict[str, torch.Tensor] = {
                name: file.get_tensor(name) for name in ("token_ids", "produced", "states")
            }
        except (SafetensorError, KeyError, ValueError) as error:
            raise DamagedError(f"{path}: {error}") from error

    @property
    def lengths(self) -> list[int]:
        return [end - start for start, end in zip(self._offsets, self._offsets[1:], strict=False)]

    def tokens(self, place: int) -> TokenSequence:
        token_ids, produced = self._rows("token_ids", place).long(), self._rows("produced", place)
        return TokenSequence(*self._names[place], token_ids, produced, place in self._recorded)

    def states(self, place: int) -> torch.Tensor:
        return self._rows("states", place)

    def _rows(self, name: str, place: int) -> torch.Tensor:
        """They lie in the file."""
        return self._tensors[name][self._offsets[place] : self._offsets[place + 1]]
