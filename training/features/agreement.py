"""Whether the target at hand is the one that answered: it decides the answers' tokens as they stand.

The engine's tokens are functions of the tokens before them, of the sampling parameters and of the seed, all of which
the answers tell. So the head is put on the states of a few answers, and sampling is done again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.checkpoint.weight_loader import iterate_tensors
from slipstream_kernels.ops.sampling import SamplingRows, sample
from slipstream_kernels.ops.soft_cap import soft_capped_reference
from training.answers.dataset import AnswerSet
from training.common.atomic_files import MismatchError
from training.features.packing import Int32
from training.features.reader import StateReader

MOST_ANSWERS: Final = 8
MOST_TOKENS: Final = 32
"""Of one answer."""
LEAST_TOKENS: Final = 16
"""Fewer tell nothing."""
LEAST_SHARE: Final = 0.9
"""Of tokens that must come out the same: states are rounded, and devices differ in their last bits."""


@dataclass(frozen=True, slots=True, eq=False)
class _Answer:
    """An answer, and the tokens before it. `start`: position of its first token."""

    token_ids: Int32
    start: int
    seed: int


@dataclass(frozen=True, slots=True)
class _Head:
    """weight: float32 [hidden, vocabulary]. column: where the states that it reads begin. cap: logits' bound, or 0."""

    weight: torch.Tensor
    column: int
    cap: float

    def logits(self, states: npt.NDArray[np.uint16]) -> torch.Tensor:
        """float32 [rows, vocabulary] of bits of bfloat16 [rows, columns]."""
        rows = np.ascontiguousarray(states[:, self.column : self.column + len(self.weight)])
        logits = torch.from_numpy(rows).view(torch.bfloat16).float() @ self.weight
        return soft_capped_reference(logits, self.cap) if self.cap else logits


def check_agreement(
    folders: Sequence[Path], model: Path, reader: StateReader, boundaries: tuple[int, ...], longest: int
) -> None:
    """Raise MismatchError where the target decides otherwise than it is said to have done, in any of the folders.

    Nothing is checked without the boundary that the head reads, or where the answers do not tell how they were asked
    for, or are too few. `longest`: tokens of a sequence that the reader takes.
    """
    config = ModelConfig.from_folder(model)
    if config.num_layers + 1 in boundaries:
        head, column = _head(model, config), boundaries.index(config.num_layers + 1) * config.hidden_size
        for folder in folders:
            _check(folder, model, reader, _Head(head, column, config.form.logit_cap), longest)


def _check(answers: Path, model: Path, reader: StateReader, head: _Head, longest: int) -> None:
    """One folder."""
    chosen = list(islice(_answers(answers, longest), MOST_ANSWERS))
    total = sum(len(answer.token_ids) - answer.start for answer in chosen)
    if total < LEAST_TOKENS:
        return
    settings = AnswerSet(answers).index["settings"]
    states = np.concatenate([rows for _, rows in reader.states(enumerate(each.token_ids for each in chosen))])
    same = end = 0
    for answer in chosen:
        first, end = end + answer.start - 1, end + len(answer.token_ids)
        decided = _decided(head.logits(states[first : end - 1]), answer, settings)
        same += int((decided == answer.token_ids[answer.start :]).sum())
    if same < LEAST_SHARE * total:
        raise MismatchError(
            f"of {total} tokens that the target is said to have produced, {model} decides {same} so: it is not the "
            f"model that gave the answers in {answers}, or they were changed"
        )


def _answers(folder: Path, longest: int) -> Iterator[_Answer]:
    """First answers of sequences; none of recordings, which nobody asked the target for."""
    answers = AnswerSet(folder)
    if answers.recorded or "settings" not in answers.index:
        return
    for record in answers.records():
        if record["produced"] and record["turns"]:
            start, end = record["produced"][0]
            end = min(end, start + MOST_TOKENS, longest)
            if 0 < start < end:
                yield _Answer(np.array(record["token_ids"][:end], np.int32), start, record["turns"][0]["seed"])


def _decided(logits: torch.Tensor, answer: _Answer, settings: dict[str, Any]) -> Int32:
    """The token of each row of float32 logits [tokens of the answer, vocabulary]."""
    rows = SamplingRows.plain(
        np.arange(answer.start, len(answer.token_ids)),
        temperature=settings["temperature"],
        top_k=settings["top_k"],
        top_p=settings["top_p"],
        seed=answer.seed,
    )
    return sample(logits.numpy(), rows)


def _head(model: Path, config: ModelConfig) -> torch.Tensor:
    """float32 [hidden, vocabulary]"""
    name = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
    weight = next(tensor for key, tensor in iterate_tensors(model, config) if key == name)
    return weight.float().T
