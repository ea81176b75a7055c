"""Prompts of a file as token ids or text, stretched to a context, and the bodies of their requests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.lib.prompt_files import records
from benchmarks.lib.prompts import PromptFileError, load_prompts

AS_THEY_ARE = 0
"""The context of prompts that are not stretched."""

Content = str | tuple[int, ...]
"""A prompt as it is sent: text, or token ids."""


@dataclass(frozen=True, slots=True)
class PromptSet:
    """Prompts in the order in which they are sent; ids beside texts where there is a tokenizer."""

    texts: tuple[str, ...]
    token_ids: tuple[tuple[int, ...], ...] = ()

    def __len__(self) -> int:
        return max(len(self.texts), len(self.token_ids))

    def contents(self, send: str) -> list[Content]:
        """As "ids" where there are any, or as "text" where there is any."""
        as_ids = self.token_ids and (send == "ids" or not self.texts)
        return [*self.token_ids] if as_ids else [*self.texts]

    @property
    def mean_tokens(self) -> float | None:
        """None where ids are not known."""
        return sum(map(len, self.token_ids)) / len(self.token_ids) if self.token_ids else None


def read_prompts(path: Path, count: int | None, tokenizer: Path | None, seed: int) -> PromptSet:
    """At most `count` prompts, spread over the file's categories and shuffled by `seed`. PromptFileError, OSError.

    Records of the form {"token_ids": [...]} or {"prompt": "..."} alone are taken as they are; all others that
    `load_prompts` knows are conversations, put into the chat template of the folder `tokenizer`, or, without one, their
    messages one after another. `tokenizer` is needed for stretching as well.
    """
    found = _bare(path, tokenizer) or _conversations(path, count, tokenizer)
    order = list(range(len(found)))
    Random(seed).shuffle(order)
    chosen = PromptSet(
        tuple(found.texts[index] for index in order if found.texts),
        tuple(found.token_ids[index] for index in order if found.token_ids),
    )
    size = len(chosen) if count is None else count
    return PromptSet(chosen.texts[:size], chosen.token_ids[:size])


def stretched(prompts: PromptSet, context: int, tokenizer: Path | None, seed: int) -> PromptSet:
    """Each prompt behind others of the set, so that it has `context` tokens; longer ones keep their last tokens.

    What stands before a prompt is drawn by `seed`, so that no two begin alike. PromptFileError without token ids.
    """
    if context == AS_THEY_ARE:
        return prompts
    if not prompts.token_ids:
        raise PromptFileError("contexts are stretched by token ids: name a folder with the model's tokenizer")
    draw = Random(f"{seed} {context}")
    ids = tuple(_stretch(own, prompts.token_ids, context, draw) for own in prompts.token_ids)
    return PromptSet(_texts(ids, tokenizer) if prompts.texts and tokenizer is not None else (), ids)


def _stretch(own: tuple[int, ...], others: Sequence[tuple[int, ...]], context: int, draw: Random) -> tuple[int, ...]:
    before: list[int] = []
    while len(before) + len(own) < context:
        before += draw.choice(others)
    keep = max(0, context - len(own))
    return (*before[len(before) - keep :], *own[max(0, len(own) - context) :])


def bodies(
    contents: Sequence[Content],
    model: str,
    tokens: int,
    *,
    token_ids: bool,
    speculation: Mapping[str, Any] | None = None,
    more: Mapping[str, Any] | None = None,
) -> list[bytes]:
    """A body of /v1/completions for each prompt: streamed, greedy, `tokens` tokens whatever the model says.

    `token_ids`: answers carry ids. `speculation`: what ours is told of it; None: nothing. `more`: further fields.
    """
    fields: dict[str, Any] = {
        "model": model,
        "max_tokens": tokens,
        "temperature": 0.0,
        "stream": True,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }
    if token_ids:
        fields["return_token_ids"] = True
    if speculation is not None:
        fields["speculation"] = dict(speculation)
    fields |= more or {}
    return [json.dumps({**fields, "prompt": content}).encode() for content in contents]


def _bare(path: Path, tokenizer: Path | None) -> PromptSet | None:
    """Prompts that are ids or texts already; None for a file of conversations."""
    found = records(path)
    if not found:
        raise PromptFileError(f"{path}: no prompts")
    if all("token_ids" in record for record in found):
        return PromptSet((), tuple(tuple(map(int, record["token_ids"])) for record in found))
    if all(set(record) == {"prompt"} and isinstance(record["prompt"], str) for record in found):
        texts = tuple(record["prompt"] for record in found)
        return PromptSet(texts, _ids(texts, tokenizer) if tokenizer is not None else ())
    return None


def _conversations(path: Path, count: int | None, tokenizer: Path | None) -> PromptSet:
    prompts = load_prompts(path, limit=count)
    if tokenizer is None:
        return PromptSet(tuple("\n\n".join(said for _, said in prompt.messages) for prompt in prompts))
    from benchmarks.local_engine.prompt_tokens import chat_token_ids

    ids = tuple(chat_token_ids(tokenizer, prompts))
    return PromptSet(_texts(ids, tokenizer), ids)


def _texts(ids: Sequence[tuple[int, ...]], tokenizer: Path) -> tuple[str, ...]:
    return tuple(_load(tokenizer).decode_batch(list(map(list, ids)), skip_special_tokens=False))


def _ids(texts: Sequence[str], tokenizer: Path) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(encoding.ids) for encoding in _load(tokenizer).encode_batch(list(texts)))


def _load(folder: Path) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(folder / "tokenizer.json"))
