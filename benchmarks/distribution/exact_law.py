"""The exact joint distribution of sampled tokens, by enumeration in float64, and the test against counts.

Written apart from the kernels: logits come from transformers in float64, and processing follows the published
order (presence penalty, temperature, top-p) in plain numpy.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

Prefix = tuple[int, ...]
Logits = Callable[[Sequence[Prefix]], NDArray[np.float64]]
"""Token sequences of one length -> logits after each, float64 [sequences, vocabulary]."""

MINIMUM_EXPECTED = 5.0
"""Cells expected to hold fewer counts than this are summed into one (Cochran, 1954)."""


@dataclass(frozen=True, slots=True)
class Law:
    """How tokens are drawn."""

    temperature: float
    top_p: float
    presence_penalty: float

    def probabilities(self, logits: NDArray[np.float64], output: Sequence[int]) -> NDArray[np.float64]:
        """The distribution of the next token, float64 [vocabulary], after `output` was generated."""
        processed: NDArray[np.float64] = logits.copy()
        processed[sorted(set(output))] -= self.presence_penalty
        processed /= self.temperature
        weights: NDArray[np.float64] = np.exp(processed - processed.max())
        weights /= weights.sum()
        order = np.lexsort((np.arange(len(weights)), -weights))
        kept = order[: int(np.searchsorted(np.cumsum(weights[order]), self.top_p)) + 1]
        result: NDArray[np.float64] = np.zeros_like(weights)
        result[kept] = weights[kept] / weights[kept].sum()
        return result


def conditionals(logits: Logits, prompt: Prefix, law: Law, length: int) -> dict[Prefix, NDArray[np.float64]]:
    """The distribution of the next token after every output of probability above 0 and less than `length` tokens."""
    table: dict[Prefix, NDArray[np.float64]] = {}
    level: list[Prefix] = [()]
    for _ in range(length):
        for output, row in zip(level, logits([(*prompt, *output) for output in level]), strict=True):
            table[output] = law.probabilities(row, output)
        level = [(*output, int(token)) for output in level for token in np.flatnonzero(table[output])]
    return table


def joint(table: Mapping[Prefix, NDArray[np.float64]], first: int, count: int) -> dict[Prefix, float]:
    """Probability of each run of `count` tokens at output positions `first`, first + 1, .."""
    reached: dict[Prefix, float] = {(): 1.0}
    for _ in range(first + count):
        reached = {
            (*output, int(token)): probability * float(table[output][token])
            for output, probability in reached.items()
            for token in np.flatnonzero(table[output])
        }
    result: dict[Prefix, float] = {}
    for output, probability in reached.items():
        result[output[first:]] = result.get(output[first:], 0.0) + probability
    return result


@dataclass(frozen=True, slots=True)
class ChiSquare:
    """Pearson's test. `impossible` counts observations of probability 0."""

    statistic: float
    degrees: int
    p_value: float
    impossible: int


def chi_square(observed: Counter[Prefix], expected: Mapping[Prefix, float]) -> ChiSquare:
    """Observed counts against exact probabilities; rare cells are summed into one."""
    total = observed.total()
    impossible = sum(count for run, count in observed.items() if run not in expected)
    rare_observed = rare_expected = statistic = 0.0
    cells = 0
    for run, probability in expected.items():
        wanted = probability * total
        if wanted < MINIMUM_EXPECTED:
            rare_expected += wanted
            rare_observed += observed[run]
        else:
            cells += 1
            statistic += (observed[run] - wanted) ** 2 / wanted
    if rare_expected >= MINIMUM_EXPECTED:
        cells += 1
        statistic += (rare_observed - rare_expected) ** 2 / rare_expected
    half = torch.tensor([(cells - 1) / 2, statistic / 2], dtype=torch.float64)
    return ChiSquare(statistic, cells - 1, float(torch.special.gammaincc(half[0], half[1])), impossible)


def reference_logits(folder: Path, batch: int = 512) -> Logits:
    """Logits of a Hugging Face folder, computed by transformers in float64."""
    transformers: Any = import_module("transformers")  # its types do not stand strict checking
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()

    def logits(sequences: Sequence[Prefix]) -> NDArray[np.float64]:
        with torch.inference_mode():
            parts = [
                model(torch.tensor(sequences[start : start + batch])).logits[:, -1]
                for start in range(0, len(sequences), batch)
            ]
        result: NDArray[np.float64] = torch.cat(parts).numpy()
        return result

    return logits


def write_tiny_vocabulary_model(folder: Path, *, vocabulary: int = 8, seed: int = 3) -> Path:
    """A random Llama over so few tokens that all its outputs can be enumerated; bf16, with a word-level tokenizer."""
    transformers: Any = import_module("transformers")
    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=256,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.LlamaForCausalLM(config)
        for name, parameter in model.named_parameters():
            # Wide enough that the next token depends on all tokens before it, and no token is certain.
            if parameter.dim() == 2:
                torch.nn.init.normal_(parameter, std=0.14 if "lm_head" in name else 0.12)
    model.to(torch.bfloat16).save_pretrained(folder)
    words = Tokenizer(WordLevel({f"t{token}": token for token in range(vocabulary)}, unk_token="t0"))  # noqa: S106  # a word
    words.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "t0",
        "eos_token": "t1",
        "chat_template": "{% for message in messages %}{{ message['content'] }}{% endfor %}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder
