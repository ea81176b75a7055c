"""States of what a target says, kept on the device that computes them: a machine's fresh memory is slow to be had."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from training.common.model import CausalLM
from training.demo_models.sampler import groups
from training.demo_models.tool_use.learn import Answered

BOUNDARIES: Final = (2, 5, 8, 9)
PASS_TOKENS: Final = 65_536
"""Tokens that pass the model at once on a GPU."""
CPU_PASS_TOKENS: Final = 4096
"""The same on a CPU, whose caches then hold more of a layer's activations."""
MEMORY_SHARE: Final = 0.5
"""The most of a GPU's free memory that states may have."""


@dataclass(frozen=True, slots=True)
class States:
    """Sequences with their states.

    parts: bfloat16 [tokens of a pass, boundaries * hidden_size], on the target's device.
    places: the part that each sequence lies in, and its first row there.
    """

    answered: Answered
    parts: list[Tensor]
    places: list[tuple[int, int]]

    def of(self, index: int) -> Tensor:
        """Of one sequence, bfloat16 [n, boundaries * hidden_size], in the memory of its part."""
        part, row = self.places[index]
        length = len(self.answered.prompts[index]) + len(self.answered.answers[index])
        return self.parts[part][row : row + length]


def lengths_of(answered: Answered) -> list[int]:
    """Tokens of each sequence."""
    return [len(prompt) + len(answer) for prompt, answer in zip(answered.prompts, answered.answers, strict=True)]


def chosen_of(answered: Answered, chosen: Sequence[int]) -> Answered:
    """The sequences of these numbers."""
    return Answered(
        [answered.prompts[index] for index in chosen],
        [answered.answers[index] for index in chosen],
        [answered.of_tools[index] for index in chosen],
    )


def room_for_states(device: torch.device) -> float:
    """Bytes that states may have on a device; without a bound on a CPU."""
    if device.type != "cuda":
        return float("inf")
    torch.cuda.empty_cache()
    return MEMORY_SHARE * torch.cuda.mem_get_info(device)[0]


@torch.inference_mode()
def states_of(model: CausalLM, answered: Answered, more: Callable[[int], bool] = lambda _held: True) -> States:
    """States at BOUNDARIES of all sequences, or of those that were had when `more` said no.

    more: asked before each pass but the first, with the bytes that are held. Passes are of sequences of like length
    and come in random order, so that those of a part are of all lengths.
    """
    device, lengths = model.cos.device, lengths_of(answered)
    most = PASS_TOKENS if device.type == "cuda" else CPU_PASS_TOKENS
    passes = list(groups(lengths, 0, most))
    parts: list[Tensor] = []
    places: dict[int, tuple[int, int]] = {}
    held = 0
    for number in np.random.default_rng(len(lengths)).permutation(len(passes)).tolist():
        if parts and not more(held):
            break
        group = passes[number]
        starts = np.cumsum([0, *(lengths[index] for index in group)]).tolist()
        places |= {index: (len(parts), start) for index, start in zip(group, starts, strict=False)}
        parts.append(_pass(model, chosen_of(answered, group)))
        held += parts[-1].nbytes
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # `more` looks at the time
    there = sorted(places)
    return States(chosen_of(answered, there), parts, [places[index] for index in there])


def _pass(model: CausalLM, answered: Answered) -> Tensor:
    """bfloat16 [tokens, boundaries * hidden_size]; padding on the right changes nothing before it."""
    device = model.cos.device
    lengths = np.array(lengths_of(answered))
    pairs = zip(answered.prompts, answered.answers, strict=True)
    ids = np.concatenate([np.asarray(part, dtype=np.int64) for pair in pairs for part in pair])
    filled = np.arange(lengths.max()) < lengths[:, None]
    padded = np.zeros(filled.shape, dtype=np.int64)
    padded[filled] = ids
    rows = torch.from_numpy(np.flatnonzero(filled)).to(device)
    shape = (len(ids), len(BOUNDARIES), model.shape.hidden_size)
    kept = torch.empty(shape, dtype=torch.bfloat16, device=device)
    for place, states in enumerate(_at_boundaries(model, torch.from_numpy(padded).to(device))):
        kept[:, place] = states.flatten(0, 1)[rows]
    return kept.flatten(1)


def _at_boundaries(model: CausalLM, tokens: Tensor) -> list[Tensor]:
    """States [B, T, hidden_size] of token ids [B, T], in the order of BOUNDARIES."""
    cos, sin = model.cos[: tokens.shape[1]], model.sin[: tokens.shape[1]]
    x, found = model.embed(tokens), []
    for number, layer in enumerate(model.layers):
        if number in BOUNDARIES:
            found.append(x)
        x = layer(x, cos, sin, None)
    if len(model.layers) in BOUNDARIES:
        found.append(x)
    return [*found, model.model.norm(x)]
