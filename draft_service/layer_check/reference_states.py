"""Short texts as a target reads them, on the CPU: its states at every boundary, and its likeliest token after each.

The texts are read once, all together, layer by layer, so that of the weights no more than a layer is in memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from draft_service.heads.config import HeadConfig
from draft_service.heads.files import read_tensors
from draft_service.heads.layer import DecoderLayer, HeadCache, RowSegment, rms_norm, rotary_rows
from draft_service.proposers.base import Target
from slipstream.rpc.errors import FailedPreconditionError
from slipstream_kernels.models.capture_layers import Bits, boundaries_of
from slipstream_kernels.models.checkpoint.fingerprint import fingerprint
from slipstream_kernels.models.checkpoint.model_config import CheckpointError, ModelConfig
from slipstream_kernels.models.checkpoint.weight_loader import (
    expected_shapes,
    iterate_tensors,
    stored_as_computed,
    weight_files,
)

TEXTS = (
    (
        "Water boils at 100 degrees at sea level. On a high mountain the pressure of the air is lower, and so "
        "water boils at a lower temperature there, which is why it takes longer to cook potatoes or rice in "
        "the mountains than at home. In a pressure cooker it is the other way round: the pressure is higher, "
        "and the food is done in less time."
    ),
    (
        "def count_words(text):\n    counts = {}\n    for word in text.split():\n        if word in counts:\n"
        "            counts[word] += 1\n        else:\n            counts[word] = 1\n    return counts\n\n\n"
        "def most_frequent(text):\n    counts = count_words(text)\n    return max(counts, key=counts.get)\n"
    ),
    (
        "Question: Tom has 12 apples and gives 5 of them to his sister. How many apples does he have left?\n"
        "Answer: Tom has 12 apples and gives away 5 of them, so he has 12 - 5 = 7 apples left. The answer is "
        "7.\nQuestion: A book costs 8 dollars. How much do 3 books cost?\n"
        "Answer: One book costs 8 dollars, so 3 books cost 3 * 8 = 24 dollars. The answer is 24."
    ),
    (
        "Once upon a time there was a little girl who lived with her mother in a small house at the edge of "
        "the forest. One day her mother said to her: take this basket to your grandmother, for she is ill "
        "and weak. Do not leave the path, and do not talk to anyone on the way. The little girl promised to "
        "be careful, and set off into the forest."
    ),
    (
        "Dear Sir or Madam,\n\n"
        "Thank you for your letter. I am writing to let you know that I will not be able to come to the "
        "meeting on Monday, because I will be out of the country. I would be grateful if you could send me "
        "the minutes of the meeting. I look forward to hearing from you.\n\nYours faithfully,\n"
    ),
    (
        "The capital of France is Paris. The capital of Germany is Berlin. The capital of Italy is Rome. The "
        "capital of Spain is Madrid. The capital of England is London. There are seven days in a week: "
        "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday. There are twelve months in a "
        "year, and the first of them is January."
    ),
)
LENGTH = 64
"""Tokens of a text that are read, at most."""
_MOST_THREADS = 16
_HEAD_ROWS = 8192
"""Rows that score tokens, as many as are in memory at once."""


@dataclass(frozen=True, slots=True)
class TargetText:
    """Texts of equal length, each with the token that begins a text in front, if there is one.

    tokens: int64 [texts, length]. likeliest: int64 [texts, length], the target's likeliest token after each. states:
    bits of bfloat16 [texts, length, boundaries, hidden_size], every boundary in order.
    """

    tokens: npt.NDArray[np.int64]
    likeliest: npt.NDArray[np.int64]
    states: Bits

    def columns(self, position: int, boundaries: Sequence[int]) -> Bits:
        """States of one position of each text, [texts, boundaries * hidden_size], side by side in this order."""
        return self.states[:, position, list(boundaries)].reshape(len(self.tokens), -1)


def facts_of(folder: Path) -> Target:
    """What a verify service would say of the model in a folder. FailedPreconditionError if none can be served."""
    with _refusing():
        config, tokenizer = ModelConfig.from_folder(folder), fingerprint(folder).tokenizer
    known = tuple(boundaries_of(config.num_layers))
    return Target(config.vocab_size, tokenizer, config.max_context, config.hidden_size, config.num_layers, known)


def read_texts(folder: Path, max_bytes: int, seconds: float) -> TargetText:
    """TEXTS as the model in a folder reads them, in float32, states rounded to bfloat16.

    FailedPreconditionError for a model that does not run here, or has no tokenizer.json, or whose weights take more
    than `max_bytes`, and where it turns out that reading them would take more than `seconds`.
    """
    with _refusing(), torch.inference_mode(), _all_threads():
        size = sum(file.stat().st_size for file in weight_files(folder))
        if size > max_bytes:
            raise FailedPreconditionError(
                f"{folder} holds {size >> 20} MiB of weights, at most {max_bytes >> 20} are read for this"
            )
        config = ModelConfig.from_folder(folder)
        tokens = _encoded(folder, config)
        states, last = _states(folder, config, tokens, seconds)
        likeliest = _likeliest(folder, config, last)
    bits = states.view(torch.uint16).numpy().reshape(*tokens.shape, *states.shape[1:])
    return TargetText(tokens, likeliest.numpy().reshape(tokens.shape), bits)


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except (CheckpointError, OSError) as error:
        raise FailedPreconditionError(str(error)) from error


@contextmanager
def _all_threads() -> Iterator[None]:
    """Nothing is served meanwhile, so all cores may work."""
    before = torch.get_num_threads()
    torch.set_num_threads(min(_MOST_THREADS, len(os.sched_getaffinity(0))))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _encoded(folder: Path, config: ModelConfig) -> npt.NDArray[np.int64]:
    """int64 [texts, length]."""
    try:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # of no type of its own
        raise FailedPreconditionError(f"{folder / 'tokenizer.json'} cannot be read: {error}") from error
    begin = [] if config.bos_token_id is None else [config.bos_token_id]
    texts = [[*begin, *tokenizer.encode(text, add_special_tokens=False).ids] for text in TEXTS]
    length = min(LENGTH, config.max_context, *map(len, texts))
    tokens = np.array([text[:length] for text in texts], np.int64)
    if tokens.max(initial=0) >= config.vocab_size:
        raise FailedPreconditionError(f"its tokenizer makes token {tokens.max()} of {config.vocab_size}")
    return tokens


def _states(
    folder: Path, config: ModelConfig, tokens: npt.NDArray[np.int64], seconds: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Those of all boundaries, bfloat16 [rows, boundaries, hidden], and those after the final norm in float32."""
    texts, length = tokens.shape
    _check_form(config, length)
    shape = replace(HeadConfig.from_folder(folder, of_target=True), num_layers=1)
    rotary = rotary_rows(shape, torch.arange(length).repeat(texts))
    names = [name for name, _ in expected_shapes(config)]
    embedding = _read(folder, config, ["model.embed_tokens.weight"])["model.embed_tokens.weight"]
    x = embedding[torch.from_numpy(tokens.flatten())].float()
    states = torch.empty(len(x), config.num_layers + 2, config.hidden_size, dtype=torch.bfloat16)
    began = time.monotonic()
    for index in range(config.num_layers):
        prefix = f"model.layers.{index}."
        tensors = _read(folder, config, [name for name in names if name.startswith(prefix)])
        layer = DecoderLayer(shape, 0, _renamed(tensors, prefix))
        segments = [RowSegment.committed(_cache(shape, length), length) for _ in range(texts)]
        states[:, index] = x
        x = layer.forward(layer.norm("input_layernorm", x), x, rotary, segments)
        if index == 0:
            began = time.monotonic()  # the first one is slow, as whatever comes first
        elif (expected := (time.monotonic() - began) / index * config.num_layers) > seconds:
            raise FailedPreconditionError(f"reading {folder} here would take {expected:.0f} s, more than {seconds:.0f}")
    states[:, -2] = x
    norm = _read(folder, config, ["model.norm.weight"])["model.norm.weight"].float()
    states[:, -1] = last = rms_norm(x, norm, config.rms_norm_eps)
    return states, last


def _check_form(config: ModelConfig, length: int) -> None:
    """FailedPreconditionError for a model whose layers are computed otherwise than a head's."""
    named = list(config.form.beyond_qwen)
    named += ["heads of which a part turns"] if config.rope.rotated else []
    named += ["windows"] if 0 < config.form.window < length else []
    if named:
        raise FailedPreconditionError(f"a {config.family} with {', '.join(named)} is not read for this")


def _read(folder: Path, config: ModelConfig, names: Sequence[str]) -> Mapping[str, torch.Tensor]:
    """Those of the model's tensors, quantised ones decoded."""
    if config.quantisation is None and stored_as_computed(config):
        return read_tensors(folder, names)
    return dict(iterate_tensors(folder, config, names))


def _renamed(tensors: Mapping[str, torch.Tensor], prefix: str) -> Mapping[str, torch.Tensor]:
    """The tensors of a layer in float32, as those of the first of a head."""
    return {f"layers.0.{name.removeprefix(prefix)}": tensor.float() for name, tensor in tensors.items()}


def _cache(shape: HeadConfig, length: int) -> HeadCache:
    cache = HeadCache(shape)
    cache.reserve(length)
    return cache


def _likeliest(folder: Path, config: ModelConfig, last: torch.Tensor) -> torch.Tensor:
    """int64 [rows], the lowest id of equals."""
    name = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
    head = _read(folder, config, [name])[name]
    best, ids = torch.full((len(last),), -torch.inf), torch.zeros(len(last), dtype=torch.int64)
    for begin in range(0, len(head), _HEAD_ROWS):
        value, place = functional.linear(last, head[begin : begin + _HEAD_ROWS].float()).max(dim=1)
        better = value > best
        best, ids = torch.where(better, value, best), torch.where(better, begin + place, ids)
    return ids
