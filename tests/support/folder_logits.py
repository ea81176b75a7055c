"""What a model in a folder computes of a text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.models.cpu.row_batch import RowBatch


def folder_logits(folder: Path, tokens: Sequence[int]) -> np.ndarray:
    """float32 [tokens, vocabulary] of at most 320 tokens, on the CPU."""
    model = CausalLM.load(folder, threads=1)
    cache = model.new_cache(num_pages=20, page_size=16, scratch_slots=1)
    return np.array(model.forward(cache, RowBatch.chunk(tokens, 0, range(20), 16)))
