"""Writes log-probabilities of prompts as JSON lists, in pieces that are each made in a few milliseconds at most."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import orjson

from gateway.core.prompt_logprobs import PromptLogprobs
from gateway.openai.types import CompletionLogprobs
from gateway.tokens.detokenizer import Detokenizer
from gateway.tokens.tokenizer import Tokenizer

LEAST_LOGPROB: Final = -9999.0
"""JSON has no infinity."""

MOST_ENTRIES: Final = 2048
"""Values in one piece."""

Pieces = Iterator[bytes]
"""Entries of a JSON list with commas between them, some in each piece."""


def token_name(tokenizer: Tokenizer, token_id: int) -> str:
    """A token as text; one that is no whole characters as "bytes:" and its bytes as escapes."""
    raw = tokenizer.token_bytes(token_id)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


class TokenNames(dict[int, str]):
    """`token_name` by id, looked up once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, token_id: int) -> str:
        self[token_id] = name = token_name(self._tokenizer, token_id)
        return name


class PromptWriter:
    """The lists of one choice's prompt: every list has an entry for each token, that of the first one is null."""

    def __init__(self, prompt: Sequence[int], scores: PromptLogprobs | None, tokenizer: Tokenizer) -> None:
        """`scores` are those of all tokens but the first; None where there is only that one."""
        self._prompt = prompt
        self._scores = scores
        self._names = TokenNames(tokenizer)
        self._tokenizer = tokenizer
        self.length = 0
        """Characters of the prompt, once its `offsets` have been written."""

    def tokens(self) -> Pieces:
        """The tokens as text."""
        for start, end in _slices(len(self._prompt), 1):
            yield _dump([*map(self._names.__getitem__, self._prompt[start:end])])

    def logprobs(self) -> Pieces:
        """The tokens' logprobs."""
        yield b"null"
        for scores, start, end in self._parts(1):
            yield _dump(_finite(scores.logprobs[start:end]))

    def tops(self, count: int) -> Pieces:
        """The logprobs of the `count` most likely tokens, and of the prompt's own, by their text."""
        yield b"null"
        for scores, start, end in self._parts(1 + count):
            part = self._prompt[scores.first + start : scores.first + end]
            yield _dump(_tops(self._names, part, scores, start, count))

    def offsets(self) -> Pieces:
        """Where each token begins in the prompt's text."""
        counter = OffsetCounter(self._tokenizer.detokenizer())
        for start, end in _slices(len(self._prompt), 8):
            yield _dump(counter.offsets(self._prompt[start:end]))
        self.length = counter.end()

    def entries(self, count: int) -> Pieces:
        """By token id the logprob, rank and text of the prompt's token and of the `count` most likely ones."""
        yield b"null"
        for scores, start, end in self._parts(4 * (1 + count)):
            yield _dump([dict(self._ranked(scores, index, count)) for index in range(start, end)])

    def _parts(self, size: int) -> Iterator[tuple[PromptLogprobs, int, int]]:
        if self._scores is not None:
            for start, end in _slices(len(self._scores.logprobs), size):
                yield self._scores, start, end

    def _ranked(self, scores: PromptLogprobs, index: int, count: int) -> Iterator[tuple[str, dict[str, Any]]]:
        token, top = self._prompt[scores.first + index], scores.top
        yield self._entry(token, scores.logprobs[index], scores.ranks[index])
        for rank, at in enumerate(range(index * top, index * top + count), start=1):
            yield self._entry(scores.top_ids[at], scores.top_logprobs[at], rank)

    def _entry(self, token: int, logprob: float, rank: int) -> tuple[str, dict[str, Any]]:
        value = max(logprob, LEAST_LOGPROB)
        return str(token), {"logprob": value, "rank": rank, "decoded_token": self._names[token]}


class PromptLogprobStream:
    """The same as plain completions stream it: a token's entries once its logprob has come."""

    def __init__(self, prompt: Sequence[int], tokenizer: Tokenizer) -> None:
        self._prompt = prompt
        self._names = TokenNames(tokenizer)
        self._counter = OffsetCounter(tokenizer.detokenizer())

    @property
    def length(self) -> int:
        """Characters of the prompt's tokens so far; of all of them once they have come."""
        return self._counter.length

    def first(self) -> CompletionLogprobs:
        """The entries of the first token."""
        tokens = self._prompt[:1]
        return {
            "tokens": [self._names[token] for token in tokens],
            "token_logprobs": [None],
            "top_logprobs": [None],
            "text_offset": self._counter.offsets(tokens),
        }

    def part(self, scores: PromptLogprobs, count: int) -> CompletionLogprobs:
        """The entries of the tokens that follow, `count` likely ones for each."""
        tokens = self._prompt[scores.first : scores.end]
        return {
            "tokens": [self._names[token] for token in tokens],
            "token_logprobs": [*_finite(scores.logprobs)],
            "top_logprobs": [*_tops(self._names, tokens, scores, 0, count)] if count else None,
            "text_offset": self._counter.offsets(tokens),
        }


class OffsetCounter:
    """Where tokens begin in a text, in characters."""

    def __init__(self, detokenizer: Detokenizer) -> None:
        self._detokenizer = detokenizer
        self.length = 0

    def offsets(self, tokens: Sequence[int]) -> list[int]:
        """Of the tokens that follow."""
        found = []
        for token in tokens:
            found.append(self.length)
            self.length += len(self._detokenizer.step(token))
        return found

    def end(self) -> int:
        """Where the text ends."""
        self.length += len(self._detokenizer.flush())
        return self.length


class Splicer:
    """A JSON document some of whose lists are written piece by piece, when their turn comes."""

    def __init__(self) -> None:
        self._mark = uuid.uuid4().hex  # nobody can have written it into the document
        self._lists: list[Callable[[], Pieces]] = []

    def list(self, *parts: Callable[[], Pieces]) -> str:
        """What stands for a list in the document, until `pieces` writes the entries of all parts there."""

        def chained() -> Pieces:
            for part in parts:
                yield from part()

        self._lists.append(chained)
        return f"{self._mark}.{len(self._lists) - 1}"

    def pieces(self, document: dict[str, Any]) -> Iterator[bytes]:
        """The document's bytes."""
        if not self._lists:
            yield orjson.dumps(document)
            return
        split = re.split(rb'"%b\.(\d+)"' % self._mark.encode(), orjson.dumps(document))
        yield split[0]
        for number, behind in zip(split[1::2], split[2::2], strict=True):
            separator = b"["
            for piece in self._lists[int(number)]():
                if piece:
                    yield separator + piece
                    separator = b","
            yield b"[]" if separator == b"[" else b"]"
            yield behind


def with_prompt(text: CompletionLogprobs, prompt: PromptWriter, count: int, splicer: Splicer) -> dict[str, Any]:
    """Logprobs of an echo and what follows: those of the prompt, with `count` likely tokens each, before the text's."""

    def offsets() -> Pieces:
        yield _dump([prompt.length + offset for offset in text["text_offset"]])

    tops = [] if text["top_logprobs"] is None else text["top_logprobs"]
    return {
        "tokens": splicer.list(prompt.tokens, lambda: iter([_dump([*text["tokens"]])])),
        "token_logprobs": splicer.list(prompt.logprobs, lambda: iter([_dump([*text["token_logprobs"]])])),
        "top_logprobs": splicer.list(partial(prompt.tops, count), lambda: iter([_dump([*tops])])) if count else None,
        "text_offset": splicer.list(prompt.offsets, offsets),
    }


def _dump(values: list[Any]) -> bytes:
    return orjson.dumps(values)[1:-1]


def _tops(
    names: TokenNames, tokens: Sequence[int], scores: PromptLogprobs, start: int, count: int
) -> list[dict[str, float] | None]:
    """Of `tokens`, which are those of `scores` from the one at `start` on, the likely ones and the token itself."""
    name, top, end = names.__getitem__, scores.top, start + len(tokens)
    values = _finite(scores.top_logprobs[start * top : end * top])
    ids = scores.top_ids[start * top : end * top]
    tops: list[dict[str, float] | None] = []
    for at, (token, value) in enumerate(zip(tokens, _finite(scores.logprobs[start:end]), strict=True)):
        part = slice(at * top, at * top + count)
        likely = dict(zip(map(name, ids[part]), values[part], strict=True))
        likely.setdefault(name(token), value)
        tops.append(likely)
    return tops


def _finite(logprobs: Sequence[float]) -> list[float]:
    return [max(value, LEAST_LOGPROB) for value in logprobs]


def _slices(count: int, size: int) -> Iterator[tuple[int, int]]:
    """Ranges of `count` entries of `size` values each."""
    step = max(1, MOST_ENTRIES // size)
    for start in range(0, count, step):
        yield start, min(count, start + step)
