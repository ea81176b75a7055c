"""Fifty short questions of our own, as a model's chat template puts them."""

from __future__ import annotations

import itertools
from pathlib import Path

from tokenizers import Tokenizer

ASKED = ("What is {}?", "Write a short story about {}.", "Give me three tips about {}.", "Who first wrote about {}?",
         "Explain {} in simple words.")  # fmt: skip
TOPICS = ("the moon", "bread", "a lighthouse", "chess", "rain", "an old map", "bees", "the sea", "snow", "trains")


def question_ids(folder: Path) -> list[tuple[int, ...]]:
    """Token ids of each, the turn of the answer begun, by the tokenizer of the shipped model in `folder`."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = [asked.format(topic) for asked, topic in itertools.product(ASKED, TOPICS)]
    return [tuple(tokenizer.encode(f"<|begin|><|user|>{text}<|end|><|assistant|>").ids) for text in texts]
