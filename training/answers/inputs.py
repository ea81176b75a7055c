"""The prompts of several files, in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from training.prompts.records import Prompt, RecordError, read_lines, read_prompt


def read_prompts(inputs: Sequence[Path]) -> Iterator[Prompt | None]:
    """The prompts in order; None for a line that holds none."""
    for path in inputs:
        for number, line in read_lines(path):
            try:
                yield read_prompt(line, f"{path.name}:{number}")
            except RecordError:
                yield None


def distinct_prompts(inputs: Sequence[Path]) -> Iterator[Prompt]:
    """The prompts in order, each text once."""
    seen: set[bytes] = set()
    for prompt in read_prompts(inputs):
        if prompt is not None and (key := bytes.fromhex(prompt.key)) not in seen:
            seen.add(key)
            yield prompt
