"""Short texts that a target writes itself, on the CPU, with its states at every boundary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from draft_service.proposers.base import Target
from slipstream.rpc.errors import FailedPreconditionError
from slipstream_kernels.models.boundaries import Bits, Capture, boundaries_of
from slipstream_kernels.models.causal_lm import CausalLM
from slipstream_kernels.models.checkpoint import fingerprint, weight_files
from slipstream_kernels.models.config import CheckpointError
from slipstream_kernels.models.row_batch import RowBatch


@dataclass(frozen=True, slots=True)
class TargetText:
    """Texts of equal length, drawn at temperature 1 from nothing but the token that begins a text.

    tokens: int64 [texts, length]. likeliest: int64 [texts, length], the target's likeliest token after each. states:
    bits of bfloat16 [texts, length, boundaries, hidden_size], every boundary in order.
    """

    tokens: npt.NDArray[np.int64]
    likeliest: npt.NDArray[np.int64]
    states: Bits

    def columns(self, position: int, boundaries: Sequence[int]) -> Bits:
        """States of one position of each text, [texts, boundaries * hidden_size], side by side in this order."""
        return self.states[:, position, list(boundaries)].reshape(len(self.tokens), -1)


def load_target(folder: Path, threads: int, most_bytes: int) -> tuple[CausalLM, Target]:
    """The model in a folder, and what a verify service would say of it.

    FailedPreconditionError if there is none that runs here, or its weights take more than `most_bytes`.
    """
    try:
        size = sum(file.stat().st_size for file in weight_files(folder))
        if size > most_bytes:
            raise FailedPreconditionError(
                f"{folder} holds {size >> 20} MiB of weights, at most {most_bytes >> 20} are loaded for this"
            )
        model = CausalLM.load(folder, threads=threads)
        model.warm_up()
        tokenizer = fingerprint(folder).tokenizer
    except (CheckpointError, OSError) as error:
        raise FailedPreconditionError(str(error)) from error
    config = model.config
    known = tuple(boundaries_of(config.num_layers))
    facts = Target(config.vocab_size, tokenizer, config.max_context, config.hidden_size, config.num_layers, known)
    return model, facts


def write_texts(model: CausalLM, texts: int, length: int, going_on: Callable[[], bool]) -> TargetText:
    """Equal calls write equal texts. They end early where `going_on` says so, with one token at least."""
    config = model.config
    length = min(length, config.max_context)
    cache = model.new_cache(num_pages=texts, page_size=length, scratch_slots=0)
    draw = np.random.default_rng(0)
    begin = (*(() if config.bos_token_id is None else (config.bos_token_id,)), *config.eos_token_ids, 0)[0]
    tokens = np.full((texts, length), begin, np.int64)
    likeliest = np.zeros((texts, length), np.int64)
    known = boundaries_of(config.num_layers)
    states = np.empty((texts, length, len(known), config.hidden_size), np.uint16)
    for position in range(length):
        capture = Capture.of(known, texts, num_layers=config.num_layers, hidden_size=config.hidden_size)
        logits = model.forward(cache, _rows(tokens, position), capture)[:, : config.vocab_size].astype(np.float64)
        states[:, position] = capture.rows.reshape(texts, len(known), config.hidden_size)
        likeliest[:, position] = logits.argmax(axis=1)
        if position + 1 == length or not going_on():
            return TargetText(tokens[:, : position + 1], likeliest[:, : position + 1], states[:, : position + 1])
        logits[:, list(config.eos_token_ids)] = -np.inf
        tokens[:, position + 1] = (logits + draw.gumbel(size=logits.shape)).argmax(axis=1)
    raise AssertionError("a text has at least one token")


def _rows(tokens: npt.NDArray[np.int64], position: int) -> RowBatch:
    """One position of each text, which has a page of its own."""
    texts, length = tokens.shape
    lines = np.arange(texts, dtype=np.int32)
    return RowBatch(
        token_ids=tokens[:, position].astype(np.int32),
        positions=np.full(texts, position, np.int32),
        write_slots=lines * np.int32(length) + np.int32(position),
        page_lines=lines,
        prefix_lengths=np.full(texts, position + 1, np.int32),
        ancestor_slots=np.zeros((texts, 1), np.int32),
        num_ancestors=np.zeros(texts, np.int32),
        page_table=lines[:, None].copy(),
        logit_rows=lines,
    )
