"""The sequences of a set of answers that are learned from, in memory: five bytes a token."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from training.answers.dataset import AnswerSequence, AnswerSet
from training.common.atomic_files import MismatchError
from training.features.settings import DROP, FeatureSettings
from training.features.source import TokenSequence
from training.recorded.rendering import Rendering, check_rendering

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """Sequence i has the tokens offsets[i] to offsets[i + 1] - 1, one or more, of which the target produced some."""

    names: tuple[tuple[str, int, str], ...]
    """id, part and category of each"""
    offsets: npt.NDArray[np.int64]
    """[sequences + 1]"""
    token_ids: Int32
    """[tokens]"""
    produced: npt.NDArray[np.bool_]
    """[tokens]"""
    recorded: npt.NDArray[np.bool_]
    """[sequences]: whether others than the target wrote what counts as produced"""
    omitted: dict[str, int]
    """How many sequences were left out, by reason, and how many were cut."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each."""
        return [int(length) for length in np.diff(self.offsets)]

    def ids(self, index: int) -> Int32:
        """The tokens of one."""
        return self.token_ids[self.offsets[index] : self.offsets[index + 1]]

    def tokens(self, index: int) -> TokenSequence:
        """One as training takes it. Raises IndexError beyond the last."""
        checked_index(index, len(self))
        span = slice(self.offsets[index], self.offsets[index + 1])
        token_ids, produced = self.token_ids[span].astype(np.int64), self.produced[span].copy()
        tensors = torch.from_numpy(token_ids), torch.from_numpy(produced)
        return TokenSequence(*self.names[index], *tensors, bool(self.recorded[index]))

    def digest(self) -> str:
        """SHA-256 of everything that training sees of them, in hexadecimal."""
        digest = hashlib.sha256(json.dumps(self.names, ensure_ascii=True).encode())
        for array in (self.offsets, self.token_ids, self.produced):
            digest.update(np.ascontiguousarray(array).data)
        if self.recorded.any():
            digest.update(self.recorded.data)
        return digest.hexdigest()


def checked_index(index: int, count: int) -> None:
    """Raise IndexError for an index that is not from 0 to count - 1."""
    if not 0 <= index < count:
        raise IndexError(f"sequence {index}, there are {count}")


def read_texts(folders: Sequence[Path], model: Path, config: ModelConfig, settings: FeatureSettings) -> Texts:
    """Those of folders of answers, one folder after the other; `settings` are resolved.

    Sequences of which the target produced nothing are left out, as there is nothing to learn from them. Raises
    DamagedError, MismatchError where another model has answered or recordings were written for one that is prompted
    otherwise than `model` is, ValueError where nothing is left.
    """
    gathered = _Gathered(settings)
    for folder in folders:
        answers = AnswerSet(folder)
        _check_vocabulary(answers, config)
        if answers.recorded:
            check_rendering(answers.index["model"], Rendering(model, config.eos_token_ids), folder)
        for sequence in answers.sequences():
            gathered.add(sequence)
    texts = gathered.texts()
    named = ", ".join(map(str, folders))
    if not len(texts):
        raise ValueError(f"{named}: no sequence to learn from: {gathered.omitted or 'there is none'}")
    unknown = int(texts.token_ids.max())
    if unknown >= config.vocab_size or int(texts.token_ids.min()) < 0:
        raise MismatchError(f"{named} has token {unknown}, the model's vocabulary has {config.vocab_size}")
    return texts


def _check_vocabulary(answers: AnswerSet, config: ModelConfig) -> None:
    served = answers.index.get("model", {}).get("vocab_size", config.vocab_size)
    if served != config.vocab_size:
        raise MismatchError(
            f"the model that answered has a vocabulary of {served}, this one of {config.vocab_size}: it is another"
        )


class _Gathered:
    """What has been read."""

    def __init__(self, settings: FeatureSettings) -> None:
        self.omitted: Counter[str] = Counter()
        self._settings = settings
        self._names: list[tuple[str, int, str]] = []
        self._ids: list[Int32] = []
        self._produced: list[npt.NDArray[np.bool_]] = []
        self._recorded: list[bool] = []

    def add(self, sequence: AnswerSequence) -> None:
        most = self._settings.max_tokens
        if len(sequence.token_ids) > most:
            if self._settings.longer == DROP:
                self.omitted["too_long"] += 1
                return
            self.omitted["cut"] += 1
        produced = sequence.produced[:most]
        if not produced.any():
            self.omitted["nothing_produced"] += 1
            return
        self._names.append((sequence.id, sequence.part, sequence.category))
        self._ids.append(sequence.token_ids[:most])
        self._produced.append(produced)
        self._recorded.append(sequence.recorded)

    def texts(self) -> Texts:
        lengths = [0, *map(len, self._ids)]
        return Texts(
            tuple(self._names),
            np.cumsum(lengths, dtype=np.int64),
            np.concatenate([np.zeros(0, np.int32), *self._ids]),
            np.concatenate([np.zeros(0, np.bool_), *self._produced]),
            np.array(self._recorded, np.bool_),
            dict(sorted(self.omitted.items())),
        )
