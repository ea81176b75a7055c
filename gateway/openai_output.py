"""Writes deltas as the OpenAI API's answers: chunks of a stream, or one body."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import orjson

from gateway.generation import Generation
from gateway.openai_types import CompletionLogprobs, Head, Speculation, TopLogprob
from gateway.openai_types import Usage as UsageBody
from gateway.request import Delta, PositionLogprobs, TokenLogprob, Usage
from gateway.tokenizer import Tokenizer

DONE: Final = b"data: [DONE]\n\n"
_LEAST_LOGPROB: Final = -9999.0
_MARK: Final = "\x00text\x00"


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """How a request wants its answer written."""

    model: str
    fingerprint: str
    logprobs: bool
    return_token_ids: bool
    include_usage: bool
    echoes: Sequence[str] = ()  # by choice, or empty


@dataclass(slots=True)
class Collected:
    """A choice of an answer that is not streamed."""

    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    last: Delta | None = None

    def add(self, delta: Delta) -> None:
        """Append a delta."""
        self.text.append(delta.text)
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs or ()
        self.last = delta


class Shape(Protocol):
    """What differs between chat and plain completions."""

    id_prefix: str
    chunk_object: str
    body_object: str

    def opening(self, generation: Generation, options: OutputOptions) -> list[dict[str, Any]]:
        """Bodies of the chunks before any text, without the head."""
        ...

    def part(self, text: str) -> dict[str, Any]:
        """The part of a chunk's choice that holds its text."""
        ...

    def whole(self, text: str) -> dict[str, Any]:
        """The part of an answer's choice that holds its text."""
        ...

    def logprobs(self, positions: Sequence[PositionLogprobs], tokenizer: Tokenizer, offset: int) -> Any:
        """Logprobs of a choice; `offset` is where their text begins."""
        ...


class OutputWriter:
    """Writes the answer to one request."""

    __slots__ = ("_generation", "_head", "_offsets", "_options", "_plain", "_shape", "_templates", "_tokenizer")

    def __init__(self, shape: Shape, generation: Generation, options: OutputOptions, tokenizer: Tokenizer) -> None:
        self._shape = shape
        self._generation = generation
        self._options = options
        self._tokenizer = tokenizer
        self._offsets = [0] * len(generation.choices)  # characters of logprobs written, by choice
        self._head: Head = {
            "id": shape.id_prefix + uuid.uuid4().hex,
            "created": int(time.time()),
            "model": options.model,
            "system_fingerprint": f"fp_{options.fingerprint[:12]}",
            "seed": generation.seed,
        }
        self._plain = not (options.logprobs or options.return_token_ids)
        self._templates: list[tuple[bytes, bytes]] = []

    def opening(self) -> bytes:
        """The chunks before any text."""
        self._templates = [self._template(index) for index in range(len(self._offsets))]
        return b"".join(self._chunk(body) for body in self._shape.opening(self._generation, self._options))

    def chunk(self, delta: Delta) -> bytes:
        """A delta as an event; empty if it has nothing to say."""
        if self._plain and delta.finish_reason is None:
            if not delta.text:
                return b""
            before, after = self._templates[delta.index]
            return before + orjson.dumps(delta.text) + after
        choice: dict[str, Any] = {"index": delta.index, **self._shape.part(delta.text), "logprobs": None}
        choice["finish_reason"] = None if delta.finish_reason is None else delta.finish_reason.value
        if self._options.logprobs and delta.logprobs:
            choice["logprobs"] = self._logprobs(delta.index, delta.logprobs)
        if self._options.return_token_ids:
            choice["token_ids"] = delta.token_ids
        if delta.finish_reason is not None:
            choice |= self._ending(delta)
        return self._chunk({"choices": [choice]})

    def closing(self) -> bytes:
        """The chunks after all text."""
        if not self._options.include_usage:
            return DONE
        return self._event({"choices": [], "usage": usage_body(self._generation.usage)}) + DONE

    def body(self, choices: Sequence[Collected]) -> bytes:
        """The answer in one piece."""
        entries = [self._entry(index, collected) for index, collected in enumerate(choices)]
        body: dict[str, Any] = {**self._head, "object": self._shape.body_object, "choices": entries}
        body["usage"] = usage_body(self._generation.usage)
        if self._options.return_token_ids:
            for opening in self._shape.opening(self._generation, self._options):
                if "prompt_token_ids" in opening:
                    body["prompt_token_ids"] = opening["prompt_token_ids"]
        return orjson.dumps(body)

    def _entry(self, index: int, collected: Collected) -> dict[str, Any]:
        last = collected.last
        echo = self._options.echoes[index] if self._options.echoes else ""
        entry = {"index": index, **self._shape.whole(echo + "".join(collected.text)), "logprobs": None}
        if self._options.logprobs:
            entry["logprobs"] = self._logprobs(index, collected.logprobs)
        if self._options.return_token_ids:
            entry["token_ids"] = collected.token_ids
            if self._shape.body_object == "text_completion":
                entry["prompt_token_ids"] = list(self._generation.orders[index].prompt_token_ids)
        if last is not None and last.finish_reason is not None:
            entry["finish_reason"] = last.finish_reason.value
            entry |= self._ending(last)
        return entry

    def _ending(self, delta: Delta) -> dict[str, Any]:
        reason = delta.stop_string if delta.stop_token_id is None else delta.stop_token_id
        usage = self._generation.choices[delta.index].usage
        return {"stop_reason": reason, "speculation": speculation_body(usage)}

    def _logprobs(self, index: int, positions: Sequence[PositionLogprobs]) -> Any:
        offset = self._offsets[index]
        self._offsets[index] += sum(
            len(token_text(self._tokenizer, position.chosen.token_id)) for position in positions
        )
        return self._shape.logprobs(positions, self._tokenizer, offset)

    def _template(self, index: int) -> tuple[bytes, bytes]:
        """What stands before and after the text in an event that has only text."""
        choice = {"index": index, **self._shape.part(_MARK), "logprobs": None, "finish_reason": None}
        before, after = self._chunk({"choices": [choice]}).split(orjson.dumps(_MARK))
        return before, after

    def _chunk(self, body: dict[str, Any]) -> bytes:
        return self._event({**body, "usage": None} if self._options.include_usage else body)

    def _event(self, body: dict[str, Any]) -> bytes:
        return b"data: " + orjson.dumps({**self._head, "object": self._shape.chunk_object, **body}) + b"\n\n"


class ChatShape:
    """Chat completions."""

    id_prefix = "chatcmpl-"
    chunk_object = "chat.completion.chunk"
    body_object = "chat.completion"

    def opening(self, generation: Generation, options: OutputOptions) -> list[dict[str, Any]]:
        """See Shape: the role of every choice, and with the first the prompt's ids."""
        chunks: list[dict[str, Any]] = []
        for index in range(len(generation.choices)):
            delta = {"role": "assistant", "content": ""}
            choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            chunks.append({"choices": [choice]})
        if options.return_token_ids:
            chunks[0]["prompt_token_ids"] = list(generation.orders[0].prompt_token_ids)
        return chunks

    def part(self, text: str) -> dict[str, Any]:
        """See Shape."""
        return {"delta": {"content": text}}

    def whole(self, text: str) -> dict[str, Any]:
        """See Shape."""
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def logprobs(self, positions: Sequence[PositionLogprobs], tokenizer: Tokenizer, offset: int) -> Any:
        """See Shape."""
        content = [
            {
                **_top_logprob(position.chosen, tokenizer),
                "top_logprobs": [_top_logprob(entry, tokenizer) for entry in position.top],
            }
            for position in positions
        ]
        return {"content": content, "refusal": None}


class CompletionShape:
    """Plain completions."""

    id_prefix = "cmpl-"
    chunk_object = "text_completion"
    body_object = "text_completion"

    def opening(self, generation: Generation, options: OutputOptions) -> list[dict[str, Any]]:
        """See Shape: the echo and the prompt's ids, where asked for."""
        if not (options.echoes or options.return_token_ids):
            return []
        choices: list[dict[str, Any]] = []
        for index, order in enumerate(generation.orders):
            choice: dict[str, Any] = {"index": index, "text": options.echoes[index] if options.echoes else ""}
            choice |= {"logprobs": None, "finish_reason": None}
            if options.return_token_ids:
                choice |= {"token_ids": [], "prompt_token_ids": list(order.prompt_token_ids)}
            choices.append(choice)
        return [{"choices": [choice]} for choice in choices]

    def part(self, text: str) -> dict[str, Any]:
        """See Shape."""
        return {"text": text}

    def whole(self, text: str) -> dict[str, Any]:
        """See Shape."""
        return {"text": text}

    def logprobs(self, positions: Sequence[PositionLogprobs], tokenizer: Tokenizer, offset: int) -> Any:
        """See Shape."""
        body: CompletionLogprobs = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        tops: list[dict[str, float]] = []
        for position in positions:
            name = _token_name(tokenizer, position.chosen.token_id)
            body["tokens"].append(name)
            body["token_logprobs"].append(_finite(position.chosen.logprob))
            body["text_offset"].append(offset)
            offset += len(token_text(tokenizer, position.chosen.token_id))
            tops.append({_token_name(tokenizer, entry.token_id): _finite(entry.logprob) for entry in position.top})
        body["top_logprobs"] = tops if any(tops) else None
        return body


def usage_body(usage: Usage) -> UsageBody:
    """Usage as the API writes it."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "verify_steps": usage.verify_steps,
        "drafted_tokens": usage.drafted_tokens,
        "accepted_tokens": usage.accepted_tokens,
    }


def speculation_body(usage: Usage) -> Speculation:
    """What speculation did for one choice."""
    return {
        "verify_steps": usage.verify_steps,
        "drafted_tokens": usage.drafted_tokens,
        "accepted_tokens": usage.accepted_tokens,
        "acceptance_length": usage.completion_tokens / usage.verify_steps if usage.verify_steps else 0.0,
    }


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """A token alone as text."""
    return tokenizer.token_bytes(token_id).decode("utf-8", "replace")


def _token_name(tokenizer: Tokenizer, token_id: int) -> str:
    """A token as text; one that is no whole characters as "bytes:" and its bytes as escapes."""
    raw = tokenizer.token_bytes(token_id)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _top_logprob(entry: TokenLogprob, tokenizer: Tokenizer) -> TopLogprob:
    return {
        "token": token_text(tokenizer, entry.token_id),
        "logprob": _finite(entry.logprob),
        "bytes": list(tokenizer.token_bytes(entry.token_id)),
    }


def _finite(logprob: float) -> float:
    """JSON has no infinity."""
    return max(logprob, _LEAST_LOGPROB)
