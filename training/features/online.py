"""Features without a disk: the target computes them when they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch

from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from training.features.agreement import check_agreement
from training.features.identity import facts_of, fingerprint_of
from training.features.reader import open_reader
from training.features.settings import FeatureSettings, Machine
from training.features.source import FeatureSequence, TokenSequence
from training.features.texts import checked_index, read_texts


class OnlineFeatures:
    """A FeatureSource over folders of answers and the target. Used by one thread.

    The states equal those of a `FeatureSet` of the same answers, settings and kind of device, bit for bit, and so
    does the fingerprint.
    """

    readers: Final = 1

    def __init__(self, answers: Sequence[Path], model: Path, settings: FeatureSettings, machine: Machine) -> None:
        """Loads the target.

        MismatchError where it is not the one that answered, and what `plan_features` and `open_reader` raise.
        """
        config = ModelConfig.from_folder(model)
        resolved = settings.resolved(config)
        self._texts = read_texts(answers, model, config, resolved)
        self.model = model
        self.boundaries = resolved.boundaries
        self.hidden_size = config.hidden_size
        self.lengths: Sequence[int] = self._texts.lengths
        self.fingerprint = fingerprint_of(facts_of(model, self.boundaries, machine, self._texts))
        longest = max(self.lengths)
        self._reader = open_reader(model, self.boundaries, machine, longest=longest)
        check_agreement(answers, model, self._reader, self.boundaries, longest)

    def __len__(self) -> int:
        return len(self._texts)

    def tokens(self, index: int) -> TokenSequence:
        """See FeatureSource."""
        return self._texts.tokens(index)

    def __getitem__(self, index: int) -> FeatureSequence:
        """See FeatureSource. One pass of the target or more."""
        return self.batch([index])[0]

    def batch(self, indices: Sequence[int]) -> list[FeatureSequence]:
        """See FeatureSource. The sequences share passes of the target."""
        for index in indices:
            checked_index(index, len(self))
        passes = [rows for _, rows in self._reader.states(enumerate(map(self._texts.ids, indices)))]
        states = torch.from_numpy(np.concatenate(passes)).view(torch.bfloat16) if passes else torch.empty(0)
        found, end = [], 0
        for known in map(self.tokens, indices):
            start, end = end, end + len(known.token_ids)
            rows = states[start:end]
            found.append(known.with_states(rows))
        return found
