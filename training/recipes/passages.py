"""Long prompts put together of passages that shorter prompts ask about.

Recorded prompts are short in most sets, while production has texts to be summed up, and several passages above a
question about one of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

SEPARATOR: Final = "\n\n"
CATEGORY: Final = "long"
CHARACTERS: Final = (1800, 4600)
"""Of a long prompt's passages, least and most."""
LEAST_PASSAGE: Final = 500
MOST_QUESTION: Final = 300
_CHUNK: Final = 100
"""Words that stay together where passages are mixed."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question and the passage under it; the passage on one line."""

    question: str
    passage: str


def passages_in(records: Iterable[Mapping[str, Any]], prefixes: Sequence[str] = ("",)) -> list[Asked]:
    """What prompts ask about, of categories that begin with one of `prefixes`: a short question, then a passage.

    records: as `slipstream train prompts` writes them.
    """
    found = []
    for record in records:
        if not str(record.get("category", "")).startswith(tuple(prefixes)):
            continue
        first = next((turn["content"] for turn in record["messages"] if turn["role"] == "user"), "")
        question, _, passage = first.partition(SEPARATOR)
        if len(passage) > LEAST_PASSAGE and len(question) < MOST_QUESTION:
            found.append(Asked(question, " ".join(passage.split())))
    return found


def long_prompts(asked: Sequence[Asked], count: int, seed: int = 7) -> Iterator[dict[str, Any]]:
    """`count` records in the form of `asked`'s, one in two to be summed up, the others with a question below."""
    rng = random.Random(seed)
    for number in range(count if asked else 0):
        size = rng.randint(*CHARACTERS)
        about = rng.choice(asked)
        parts = [about.passage]
        while sum(map(len, parts)) < size:
            parts.append(rng.choice(asked).passage)
        if number % 2:
            text = "Summarize: " + " ".join(parts)[:size]
        else:
            chunks = [chunk for part in parts for chunk in _chunks(part)]
            rng.shuffle(chunks)
            text = f"{chr(10).join(chunks)[:size]}\n{about.question}"
        yield {"messages": [{"role": "user", "content": text}], "category": CATEGORY}


def _chunks(passage: str) -> list[str]:
    words = passage.split()
    return [" ".join(words[start : start + _CHUNK]) for start in range(0, len(words), _CHUNK)]
