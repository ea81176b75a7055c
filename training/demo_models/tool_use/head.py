"""The EAGLE-3 head follows the target: `fit` from the head as it is, over states that are kept in memory."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from training.demo_models.states import BOUNDARIES, States, chosen_of, lengths_of
from training.demo_models.tool_use.learn import Answered
from training.demo_models.tool_use.settings import Options
from training.features.source import FeatureSequence, TokenSequence
from training.fit.parallel import world
from training.fit.run import fit
from training.fit.settings import FitSettings, RunOptions


class MemoryFeatures:
    """A FeatureSource over sequences whose states are in memory. Its fingerprint knows of no weights."""

    readers: Final = 4

    def __init__(self, model: Path, states: States) -> None:
        """model: folder of the target."""
        answered, part = states.answered, states.parts[0]
        self.model = model
        self.boundaries = BOUNDARIES
        self.hidden_size = part.shape[1] // len(BOUNDARIES)
        self.lengths: Sequence[int] = lengths_of(answered)
        self.asked_at: list[float] = []
        self._answered, self._states = answered, states
        self._stream = torch.cuda.Stream(part.device) if part.is_cuda else None
        digest = hashlib.sha256(str(model).encode())
        for prompt, answer in zip(answered.prompts, answered.answers, strict=True):
            digest.update(np.asarray(prompt, dtype=np.int32).tobytes() + np.array(answer, dtype=np.int32).tobytes())
        self.fingerprint = digest.hexdigest()

    def __len__(self) -> int:
        return len(self.lengths)

    def tokens(self, index: int) -> TokenSequence:
        """See FeatureSource."""
        prompt, answer = self._answered.prompts[index], self._answered.answers[index]
        ids = torch.from_numpy(np.concatenate((np.asarray(prompt, np.int64), np.array(answer, np.int64))))
        produced = torch.arange(len(ids)) >= len(prompt)
        category = "tools and JSON" if self._answered.of_tools[index] else "conversation"
        return TokenSequence(str(index), 0, category, ids, produced)

    def __getitem__(self, index: int) -> FeatureSequence:
        """See FeatureSource."""
        return self._fetched([index])[0]

    def batch(self, indices: Sequence[int]) -> list[FeatureSequence]:
        """See FeatureSource. `asked_at` keeps when it was called, which is once a step."""
        self.asked_at.append(time.perf_counter())
        return self._fetched(indices)

    def _fetched(self, indices: Sequence[int]) -> list[FeatureSequence]:
        found = self._on_host([self._states.of(index) for index in indices])
        return [self.tokens(index).with_states(states) for index, states in zip(indices, found, strict=True)]

    def _on_host(self, found: list[Tensor]) -> list[Tensor]:
        """The same on the host, from a GPU in one copy beside what else it does."""
        if self._stream is None:
            return found
        ends = np.cumsum([len(each) for each in found]).tolist()
        with torch.cuda.stream(self._stream):
            joined = torch.cat(found)
            here = torch.empty(joined.shape, dtype=joined.dtype, pin_memory=True)
            here.copy_(joined, non_blocking=True)
            done = self._stream.record_event()
        done.synchronize()
        return [here[end - len(each) : end] for each, end in zip(found, ends, strict=True)]


def first_of(answered: Answered, most: int) -> Answered:
    """The first sequences, of no more than `most` tokens in all."""
    count = int(np.searchsorted(np.cumsum(lengths_of(answered)), most, side="right"))
    return chosen_of(answered, range(count))


def head_settings(options: Options, start: Path, steps: int, lr: float) -> FitSettings:
    """Those of the head that is shipped, but for where it begins, how long it learns and how fast."""
    recipe = options.recipe
    return FitSettings(
        family="eagle3",
        unroll=5,
        decay=0.7,
        argmax_weight=recipe.argmax_weight,
        boundaries=BOUNDARIES[:-1],
        draft_vocab=8192,
        freeze_scores=True,
        intermediate_size=2496,
        start=start,
        epochs=1000,
        max_steps=steps,
        row_length=recipe.head_row_length,
        batch_rows=recipe.head_rows,
        optimizer="muon",
        lr=lr,
        warmup=0.02,
        weight_decay=0.05,
        seed=recipe.seed,
    )


def measured(
    options: Options, source: MemoryFeatures, heldout: MemoryFeatures, start: Path, folder: Path, steps: int
) -> tuple[dict[str, Any], float]:
    """What `start` is worth on `heldout`, as `fit` simulates it, and how many steps a second `fit` takes."""
    source.asked_at.clear()
    settings = head_settings(options, start, steps, 1e-12)
    found = run(options.device, source, heldout, settings, folder)
    half = source.asked_at[len(source.asked_at) // 2 :]
    return found["heldout"], (len(half) - 1) / max(1e-6, half[-1] - half[0])


def run(
    device: str, source: MemoryFeatures, heldout: MemoryFeatures, settings: FitSettings, folder: Path
) -> dict[str, Any]:
    """A run of `fit`; its manifest."""
    told = RunOptions(log_every=200, checkpoint_every=1000, progress=False, check_labels=False)
    with world(device) as group:
        return fit(source, folder, settings, told, group, heldout)
