"""Sets of answers made up, and the states of a text in one pass of the target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slipstream_kernels.models.capture_layers import Bits, Capture
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.models.cpu.row_batch import RowBatch
from training.answers.dataset import write_set


def conversation(number: int, *texts: Sequence[int], category: str = "sums", produced: int = 1) -> dict[str, Any]:
    """A conversation of one sequence or more, of each of which the target produced the last `produced` tokens."""
    parts = [
        {"token_ids": list(text), "produced": [[len(text) - produced, len(text)]], "turns": [], "messages": []}
        for text in texts
    ]
    return {"id": f"{number:032x}", "origin": f"file:{number}", "category": category, "sequences": parts}


def write_answers(folder: Path, lengths: Sequence[int], *, vocabulary: int = 512, seed: int = 0) -> Path:
    """Answers of random tokens, a conversation for each length."""
    random = np.random.default_rng(seed)
    texts = [random.integers(3, vocabulary, length).tolist() for length in lengths]
    folder.mkdir(parents=True, exist_ok=True)
    write_set(folder, [conversation(number, text) for number, text in enumerate(texts)], {"summary": {}}, 10)
    return folder


def states_of(model: CausalLM, tokens: Sequence[int], boundaries: tuple[int, ...]) -> Bits:
    """Of all positions, computed together."""
    config = model.config
    capture = Capture.of(boundaries, len(tokens), num_layers=config.num_layers, hidden_size=config.hidden_size)
    pages = -(-len(tokens) // 16)
    cache = model.new_cache(num_pages=pages, page_size=16, scratch_slots=0)
    model.forward(cache, RowBatch.chunk(tokens, 0, range(pages), 16), capture)
    return capture.rows
