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

from training.common.model import CausalLM, Mask
from training.demo_models.sampler import groups
from training.demo_models.tool_use.learn import Answered
from training.demo_models.tool_use.settings import Options
from training.features.source import FeatureSequence, TokenSequence
from training.fit.parallel import world
from training.fit.run import fit
from training.fit.settings import FitSettings, RunOptions

BOUNDARIES: Final = (2, 5, 8, 9)
PASS_TOKENS: Final = 65_536


class MemoryFeatures:
    """A FeatureSource over sequences whose states are in memory. Its fingerprint knows of no weights."""

    readers: Final = 4

    def __init__(self, model: Path, hidden_size: int, answered: Answered, states: Tensor) -> None:
        """states: bfloat16 [tokens of all sequences, boundaries * hidden_size]."""
        self.model = model
        self.boundaries = BOUNDARIES
        self.hidden_size = hidden_size
        self.lengths: Sequence[int] = lengths_of(answered)
        self.asked_at: list[float] = []
        self._answered, self._states = answered, states
        self._starts = np.cumsum([0, *self.lengths])
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
        return self.tokens(index).with_states(self._states[self._starts[index] : self._starts[index + 1]])

    def batch(self, indices: Sequence[int]) -> list[FeatureSequence]:
        """See FeatureSource. `asked_at` keeps when it was called, which is once a step."""
        self.asked_at.append(time.perf_counter())
        return [self[index] for index in indices]


def lengths_of(answered: Answered) -> list[int]:
    """Tokens of each sequence."""
    return [len(prompt) + len(answer) for prompt, answer in zip(answered.prompts, answered.answers, strict=True)]


def first_of(answered: Answered, most: int) -> Answered:
    """The first sequences, of no more than `most` tokens in all."""
    count = int(np.searchsorted(np.cumsum(lengths_of(answered)), most, side="right"))
    return Answered(answered.prompts[:count], answered.answers[:count], answered.of_tools[:count])


@torch.inference_mode()
def states_of(model: CausalLM, answered: Answered) -> Tensor:
    """States at BOUNDARIES of all sequences, bfloat16 [tokens, boundaries * hidden_size] on the host."""
    lengths = lengths_of(answered)
    starts = np.cumsum([0, *lengths]).tolist()
    kept = torch.empty(starts[-1], len(BOUNDARIES) * model.shape.hidden_size, dtype=torch.bfloat16)
    for group in groups(lengths, 0, PASS_TOKENS):
        width = max(lengths[index] for index in group)
        tokens = torch.zeros(len(group), width, dtype=torch.int64)
        for row, index in enumerate(group):
            whole = [*answered.prompts[index], *answered.answers[index]]
            tokens[row, : len(whole)] = torch.from_numpy(np.array(whole, np.int64))
        states = _states(model, tokens.to(model.cos.device), None).to("cpu", torch.bfloat16)
        for row, index in enumerate(group):
            kept[starts[index] : starts[index + 1]] = states[row, : lengths[index]]
    return kept


def _states(model: CausalLM, tokens: Tensor, mask: Mask) -> Tensor:
    """[B, T, boundaries * hidden_size] of token ids [B, T]; padding on the right changes nothing before it."""
    cos, sin = model.cos[: tokens.shape[1]], model.sin[: tokens.shape[1]]
    x, found = model.embed(tokens), []
    for number, layer in enumerate(model.layers):
        if number in BOUNDARIES:
            found.append(x)
        x = layer(x, cos, sin, mask)
    if len(model.layers) in BOUNDARIES:
        found.append(x)
    return torch.cat((*found, model.model.norm(x)), dim=-1)


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
