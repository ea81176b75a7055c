"""Several sets of features as one, the sequences of one behind those of the other."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Final

from training.common.atomic_files import MismatchError
from training.features.dataset import FeatureSet
from training.features.source import FeatureSequence, TokenSequence
from training.features.texts import checked_index


class JoinedFeatures:
    """A FeatureSource over one or more folders of features of one target, whose first names where the target is."""

    readers: Final = FeatureSet.readers

    def __init__(self, sets: Sequence[FeatureSet]) -> None:
        """MismatchError, naming a folder, for one of another target or other boundaries than the first."""
        first, *others = sets
        for other in others:
            for name in ("model", "boundaries"):
                if other.index[name] != first.index[name]:
                    raise MismatchError(
                        f"{other.folder} has another {name} than {first.folder}: {other.index[name]} instead of "
                        f"{first.index[name]}"
                    )
        self.model: Path = first.model
        self.boundaries: tuple[int, ...] = first.boundaries
        self.hidden_size: int = first.hidden_size
        fingerprints = [each.fingerprint for each in sets]
        of_all = hashlib.sha256(json.dumps(fingerprints).encode()).hexdigest()
        self.fingerprint: str = of_all if others else first.fingerprint
        self.lengths: Sequence[int] = [length for each in sets for length in each.lengths]
        self._sets = tuple(sets)
        self._firsts = [0, *accumulate(map(len, sets))]

    def __len__(self) -> int:
        return self._firsts[-1]

    def tokens(self, index: int) -> TokenSequence:
        """See FeatureSource."""
        number, place = self._find(index)
        return self._sets[number].tokens(place)

    def __getitem__(self, index: int) -> FeatureSequence:
        """See FeatureSource."""
        number, place = self._find(index)
        return self._sets[number][place]

    def batch(self, indices: Sequence[int]) -> list[FeatureSequence]:
        """See FeatureSource."""
        return [self[index] for index in indices]

    def _find(self, index: int) -> tuple[int, int]:
        """The set, and the sequence's number in it."""
        checked_index(index, len(self))
        number = bisect_right(self._firsts, index) - 1
        return number, index - self._firsts[number]
