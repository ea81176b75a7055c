"""The mixture's EAGLE-3 head: `fit` from the target's last layer, over the target's own answers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

import numpy as np

from training.common.model import CausalLM
from training.demo_models.answers import draw_prompts
from training.demo_models.experts.settings import MixtureOptions
from training.demo_models.mixture import PROMPT_PASSES
from training.demo_models.prepare import Documents
from training.demo_models.progress import Progress
from training.demo_models.sampler import generate
from training.demo_models.states import BOUNDARIES, lengths_of, room_for_states, states_of
from training.demo_models.tool_use.head import MemoryFeatures, run
from training.demo_models.tool_use.learn import Answered
from training.fit.settings import FitSettings

START_SECONDS: Final = 12.0
"""What a run of `fit` takes beside its steps."""
LAST_SECONDS: Final = 10.0
"""What follows the head: its files, the report, the process's end."""
PORTION: Final = 8192
"""Prompts that are answered before the time is looked at again."""


def seconds_left(options: MixtureOptions, progress: Progress) -> float:
    """Of the whole run."""
    return options.recipe.seconds - progress.elapsed


def answered(
    options: MixtureOptions,
    progress: Progress,
    target: CausalLM,
    documents: Documents,
    sources: list[str],
    stops: list[int],
    *,
    count: int,
    greedy: bool,
    seed: int,
) -> Answered:
    """The target's answers to `count` prompts of the corpus: all greedy, or of eight one at 0.8, one that begins so.

    They are fewer where more would leave the head less than its seconds; states are taken to cost as long again.
    """
    recipe = options.recipe
    longest = recipe.head_row_length - recipe.answer_tokens
    prompts = draw_prompts(documents, PROMPT_PASSES, sources, count, longest, seed)
    starts = np.random.default_rng(seed).integers(1, 16, len(prompts)).tolist()
    hot = [0 if greedy else (0, 0, 0, 0, 0, 0, start, 1024)[index % 8] for index, start in enumerate(starts)]
    warmth = [0.8 if tokens else 0.0 for tokens in hot]
    answers: list[list[int]] = []
    for first in range(0, len(prompts), PORTION):
        began, part = progress.elapsed, slice(first, first + PORTION)
        answers += generate(
            target, prompts[part], warmth[part], recipe.answer_tokens, stops, seed + first, hot_tokens=hot[part]
        )
        portion = progress.elapsed - began
        if seconds_left(options, progress) - recipe.head_seconds - LAST_SECONDS < (3 + first / PORTION) * portion:
            break
    return Answered(list(prompts[: len(answers)]), answers, [False] * len(answers))


def features(
    options: MixtureOptions, progress: Progress, target: CausalLM, folder: Path, said: Answered
) -> MemoryFeatures:
    """States of what the target says, which is exported in `folder`.

    They are of fewer sequences where more would leave the head less than its seconds, or where a GPU has no room.
    """
    room, reserve = room_for_states(target.cos.device), options.recipe.head_seconds + LAST_SECONDS
    began = progress.elapsed
    states = states_of(target, said, lambda held: held < room and seconds_left(options, progress) > reserve)
    tokens = sum(lengths_of(states.answered))
    rate = tokens / max(1e-6, progress.elapsed - began)
    there = f"{len(states.places)} of {len(said.answers)} sequences"
    progress.say(f"states of {there}, {tokens / 1e6:.2f} M tokens ({rate / 1e6:.3f} M tokens/s)")
    return MemoryFeatures(folder, states)


def head_settings(options: MixtureOptions, steps: int) -> FitSettings:
    """Those of the demo model's head, but for how long it learns and how fast."""
    recipe = options.recipe
    return FitSettings(
        family="eagle3",
        unroll=5,
        decay=0.7,
        argmax_weight=recipe.argmax_weight,
        boundaries=BOUNDARIES[:-1],
        draft_vocab=recipe.vocab_size,
        freeze_scores=True,
        intermediate_size=recipe.head_intermediate_size,
        epochs=1000,
        max_steps=steps,
        row_length=recipe.head_row_length,
        batch_rows=recipe.head_rows,
        optimizer="muon",
        lr=recipe.head_lr,
        warmup=0.02,
        weight_decay=0.05,
        seed=recipe.seed,
    )


def train_head(
    options: MixtureOptions, progress: Progress, source: MemoryFeatures, heldout: MemoryFeatures
) -> dict[str, Any]:
    """The manifest of a run of `fit` in the work folder's `head`, of as many steps as fit into its seconds.

    Where these are too few for a trial, it has the trial's steps.
    """
    recipe = options.recipe
    began, steps = time.perf_counter(), recipe.head_steps
    seconds = min(recipe.head_seconds, seconds_left(options, progress) - LAST_SECONDS)
    if not steps and seconds < 3 * START_SECONDS:
        steps = recipe.head_trial_steps
    if not steps:
        source.asked_at.clear()
        run(options.device, source, heldout, head_settings(options, recipe.head_trial_steps), options.work / "trial")
        half = source.asked_at[len(source.asked_at) // 2 :]
        speed = (len(half) - 1) / max(1e-6, half[-1] - half[0])
        left = seconds - START_SECONDS - (time.perf_counter() - began)
        steps = max(recipe.head_trial_steps, int(0.92 * left * speed))
    return run(options.device, source, heldout, head_settings(options, steps), options.work / "head")
