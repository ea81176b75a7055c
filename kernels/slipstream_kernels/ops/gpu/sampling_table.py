"""How running requests are sampled, as persistent tables on the device: one line a request."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

TEMPERATURE, TOP_K, TOP_P, MIN_P, SEED_LOW, SEED_HIGH, CHOICE = range(7)
REPETITION, PRESENCE, FREQUENCY, FLAGS, MIN_POSITION = range(7, 12)
FIELDS = 16
"""int32 words of a line; floats are bit-cast, those behind MIN_POSITION are unused."""

HAS_PENALTIES, HAS_BIAS, HAS_MIN_TOKENS, AWAITS_MASKS = 1, 2, 4, 8
"""Bits of the word FLAGS. Rows of lines that await masks get no token where they are sampled without. A table other
than `params` is read only for lines whose bit is set."""

IN_PROMPT, ENDS_OUTPUT = 1, 2
"""Bits of `SamplingTensors.token_flags`."""

_LARGEST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class SamplingTensors:
    """Contiguous device tensors of all lines."""

    params: torch.Tensor
    """int32 [lines, FIELDS], a line as `pack_line` makes it"""
    token_flags: torch.Tensor
    """uint8 [lines, vocab], bits IN_PROMPT and ENDS_OUTPUT; read for penalties and min tokens"""
    output_counts: torch.Tensor
    """int32 [lines, vocab], how often the committed output has the token; read for penalties"""
    bias: torch.Tensor
    """float32 [lines, vocab], added to the logits"""


def allocate_sampling_tensors(lines: int, vocab_size: int, device: torch.device) -> SamplingTensors:
    """Tables of zeros, but every line set to take the likeliest token: 9 bytes a line and token."""
    params = torch.from_numpy(np.tile(pack_line(), (lines, 1)))
    return SamplingTensors(
        params=params.to(device),
        token_flags=torch.zeros(lines, vocab_size, dtype=torch.uint8, device=device),
        output_counts=torch.zeros(lines, vocab_size, dtype=torch.int32, device=device),
        bias=torch.zeros(lines, vocab_size, dtype=torch.float32, device=device),
    )


def pack_line(
    *,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 0,
    choice: int = 0,
    repetition: float = 1.0,
    presence: float = 0.0,
    frequency: float = 0.0,
    has_bias: bool = False,
    min_position: int = 0,
    awaits_masks: bool = False,
) -> npt.NDArray[np.int32]:
    """A line of `SamplingTensors.params`: int32 [FIELDS].

    Seed uint64, choice uint32. No token decided for an absolute position below `min_position` may end the output:
    that is the length of the prompt plus the least number of tokens. What is at its default costs nothing.
    """
    line = np.zeros(FIELDS, np.int32)
    floats, words = line.view(np.float32), line.view(np.uint32)
    floats[[TEMPERATURE, TOP_P, MIN_P]] = temperature, top_p, min_p
    floats[[REPETITION, PRESENCE, FREQUENCY]] = repetition, presence, frequency
    words[[SEED_LOW, SEED_HIGH, CHOICE]] = seed & 0xFFFFFFFF, seed >> 32, choice
    line[TOP_K], line[MIN_POSITION] = top_k, min(min_position, _LARGEST)
    penalised = floats[REPETITION] != 1 or floats[PRESENCE] != 0 or floats[FREQUENCY] != 0
    line[FLAGS] = (
        (HAS_PENALTIES if penalised else 0)
        | (HAS_BIAS if has_bias else 0)
        | (HAS_MIN_TOKENS if line[MIN_POSITION] > 0 else 0)
        | (AWAITS_MASKS if awaits_masks else 0)
    )
    return line
