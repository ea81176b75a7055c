"""Writes deltas as the OpenAI API's answers: chunks of a stream, or one body."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

import orjson

from gateway.generation import Generation
from gateway.openai_prompt_logprobs import (
    LEAST_LOGPROB,
    PromptChunks,
    PromptWriter,
    Splicer,
    token_name,
    with_prompt,
)
from gateway.openai_types import CompletionLogprobs, Head, Speculation, TopLogprob
from gateway.openai_types import Usage as UsageBody
from gateway.prompt_logprobs import PromptLogprobs
from gateway.request import Delta
from gateway.tokenizer import Tokenizer
from slipstream.generation_types import PositionLogprobs, TokenLogprob, Usage
from slipstream.tracing.names import OPERATION_CHAT, OPERATION_COMPLETION

DONE: Final = b"data: [DONE]\n\n"
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
    top: int = 0  # likely tokens at each position of an echo
    prompt_logprobs: int | None = None  # likely tokens at each position of the prompt, where asked for

    @property
    def echoes_logprobs(self) -> bool:
        """Whether logprobs of a text begin with those of its prompt."""
        return self.logprobs and bool(self.echoes)


@dataclass(slots=True)
class Collected:
    """A choice of an answer that is not streamed."""

    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    prompt_logprobs: PromptLogprobs | None = None
    last: Delta | None = None

    def add(self, delta: Delta) -> None:
        """Append a delta."""
        self.text.append(delta.text)
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs or ()
        if self.prompt_logprobs is None:
            self.prompt_logprobs = delta.prompt_logprobs
        elif delta.prompt_logprobs is not None:
            self.prompt_logprobs.extend(delta.prompt_logprobs)
        self.last = delta


class Shape(Protocol):
    """What differs between chat and plain completions."""

    id_prefix: str
    operation: str
    """Of the request's span."""
    chunk_object: str
    body_object: str
    prompt_in_choice: bool
    """Whether the prompt's logprobs stand in each choice, and not beside all of them."""

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

    __slots__ = ("_generation", "_head", "_offsets", "_options", "_plain", "_prompts", "_shape", "_templates",
                 "_tokenizer")  # fmt: skip

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
        self._prompts: list[PromptChunks] = []  # of a streamed echo with logprobs, by choice

    @property
    def model(self) -> str:
        """The name of the model that answers."""
        return self._options.model

    @property
    def request_id(self) -> str:
        """The id that the answer carries."""
        return self._head["id"]

    def opening(self) -> bytes:
        """The chunks before any text."""
        self._templates = [self._template(index) for index in range(len(self._offsets))]
        bodies = self._shape.opening(self._generation, self._options)
        if self._options.echoes_logprobs:
            self._prompts = [
                PromptChunks(request.prompt_token_ids, self._tokenizer) for request in self._generation.requests
            ]
            for prompt, body in zip(self._prompts, bodies, strict=True):
                body["choices"][0]["logprobs"] = prompt.first()
        return b"".join(map(self._chunk, bodies))

    def chunk(self, delta: Delta) -> bytes:
        """A delta as an event; empty if it has nothing to say."""
        if delta.prompt_logprobs is not None:
            return self._prompt_chunk(delta.index, delta.prompt_logprobs)
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

    def body(self, choices: Sequence[Collected]) -> Iterator[bytes]:
        """The answer in pieces, as many as its prompts' logprobs take."""
        splicer = Splicer()
        entries = [self._entry(index, collected) for index, collected in enumerate(choices)]
        body: dict[str, Any] = {**self._head, "object": self._shape.body_object, "choices": entries}
        for index, (entry, collected) in enumerate(zip(entries, choices, strict=True)):
            prompt = self._generation.requests[index].prompt_token_ids
            writer = PromptWriter(prompt, collected.prompt_logprobs, self._tokenizer)
            if self._options.echoes_logprobs:
                entry["logprobs"] = with_prompt(entry["logprobs"], writer, self._options.top, splicer)
            if self._options.prompt_logprobs is not None and (self._shape.prompt_in_choice or index == 0):
                listed = splicer.list(partial(writer.entries, self._options.prompt_logprobs))
                (entry if self._shape.prompt_in_choice else body)["prompt_logprobs"] = listed
        body["usage"] = usage_body(self._generation.usage)
        if self._options.return_token_ids:
            for opening in self._shape.opening(self._generation, self._options):
                if "prompt_token_ids" in opening:
                    body["prompt_token_ids"] = opening["prompt_token_ids"]
        return splicer.pieces(body)

    def _prompt_chunk(self, index: int, scores: PromptLogprobs) -> bytes:
        if not self._prompts:
            return b""
        choice: dict[str, Any] = {"index": index, "text": "", "logprobs": None, "finish_reason": None}
        choice["logprobs"] = self._prompts[index].part(scores, self._options.top)
        self._offsets[index] = self._prompts[index].length
        if self._options.return_token_ids:
            choice["token_ids"] = []
        return self._chunk({"choices": [choice]})

    def _entry(self, index: int, collected: Collected) -> dict[str, Any]:
        last = collected.last
        echo = self._options.echoes[index] if self._options.echoes else ""
        entry = {"index": index, **self._shape.whole(echo + "".join(collected.text)), "logprobs": None}
        if self._options.logprobs:
            entry["logprobs"] = self._logprobs(index, collected.logprobs)
        if self._options.return_token_ids:
            entry["token_ids"] = collected.token_ids
            if self._shape.body_object == "text_completion":
                entry["prompt_token_ids"] = list(self._generation.requests[index].prompt_token_ids)
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
    operation = OPERATION_CHAT
    chunk_object = "chat.completion.chunk"
    body_object = "chat.completion"
    prompt_in_choice = False

    def opening(self, generation: Generation, options: OutputOptions) -> list[dict[str, Any]]:
        """See Shape: the role of every choice, and with the first the prompt's ids."""
        chunks: list[dict[str, Any]] = []
        for index in range(len(generation.choices)):
            delta = {"role": "assistant", "content": ""}
            choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            chunks.append({"choices": [choice]})
        if options.return_token_ids:
            chunks[0]["prompt_token_ids"] = list(generation.requests[0].prompt_token_ids)
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
    operation = OPERATION_COMPLETION
    chunk_object = "text_completion"
    body_object = "text_completion"
    prompt_in_choice = True

    def opening(self, generation: Generation, options: OutputOptions) -> list[dict[str, Any]]:
        """See Shape: the echo and the prompt's ids, where asked for."""
        if not (options.echoes or options.return_token_ids):
            return []
        choices: list[dict[str, Any]] = []
        for index, request in enumerate(generation.requests):
            choice: dict[str, Any] = {"index": index, "text": options.echoes[index] if options.echoes else ""}
            choice |= {"logprobs": None, "finish_reason": None}
            if options.return_token_ids:
                choice |= {"token_ids": [], "prompt_token_ids": list(request.prompt_token_ids)}
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
            name, logprob = token_name(tokenizer, position.chosen.token_id), _finite(position.chosen.logprob)
            body["tokens"].append(name)
            body["token_logprobs"].append(logprob)
            body["text_offset"].append(offset)
            offset += len(token_text(tokenizer, position.chosen.token_id))
            likely = {token_name(tokenizer, entry.token_id): _finite(entry.logprob) for entry in position.top}
            if likely:
                likely.setdefault(name, logprob)
            tops.append(likely)
        body["top_logprobs"] = [*tops] if any(tops) else None
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
        "acceptance_length": usage.acceptance_length,
    }


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """A token alone as text."""
    return tokenizer.token_bytes(token_id).decode("utf-8", "replace")


def _top_logprob(entry: TokenLogprob, tokenizer: Tokenizer) -> TopLogprob:
    return {
        "token": token_text(tokenizer, entry.token_id),
        "logprob": _finite(entry.logprob),
        "bytes": list(tokenizer.token_bytes(entry.token_id)),
    }


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)
