"""Writes deltas as the OpenAI API's answers: chunks of a stream, or one body."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

import orjson

from gateway.core.prompt_logprobs import PromptLogprobs
from gateway.core.request import Delta
from gateway.generation.generation import Generation
from gateway.openai.prompt_logprobs import (
    LEAST_LOGPROB,
    PromptLogprobStream,
    PromptWriter,
    Splicer,
    token_name,
    with_prompt,
)
from gateway.openai.trace import trace_body
from gateway.openai.types import CompletionLogprobs, Head, Speculation
from gateway.openai.types import Usage as UsageBody
from gateway.output_parsers.parts import AnswerPart, joined
from gateway.output_parsers.registry import AnswerForm
from gateway.tokens.tokenizer import Tokenizer
from slipstream.generation_types import FinishReason, PositionLogprobs, Usage
from slipstream.tracing.names import OPERATION_COMPLETION

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
    parts: list[AnswerPart] | None = None
    last: Delta | None = None

    def add(self, delta: Delta) -> None:
        """Append a delta."""
        self.text.append(delta.text)
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs or ()
        if delta.parts is not None:
            self.parts = joined([*(self.parts or ()), *delta.parts])
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

    def pieces(self, delta: Delta, form: AnswerForm | None) -> list[dict[str, Any]]:
        """The same of the chunks that a delta makes: none where it has nothing to say."""
        ...

    def whole(self, text: str, parts: Sequence[AnswerPart] | None, form: AnswerForm | None) -> dict[str, Any]:
        """The part of an answer's choice that holds its text, or the parts that this has been split into."""
        ...

    def logprobs(self, positions: Sequence[PositionLogprobs], tokenizer: Tokenizer, offset: int) -> Any:
        """Logprobs of a choice; `offset` is where their text begins."""
        ...


class OutputWriter:
    """Writes the answer to one request."""

    __slots__ = ("_form", "_generation", "_head", "_offsets", "_options", "_plain", "_prompts", "_shape", "_templates",
                 "_tokenizer")  # fmt: skip

    def __init__(self, shape: Shape, generation: Generation, options: OutputOptions, tokenizer: Tokenizer) -> None:
        self._shape = shape
        self._generation = generation
        self._options = options
        self._tokenizer = tokenizer
        self._form = generation.requests[0].answer
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
        self._prompts: list[PromptLogprobStream] = []  # of a streamed echo with logprobs, by choice

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
                PromptLogprobStream(request.prompt_token_ids, self._tokenizer) for request in self._generation.requests
            ]
            for prompt, body in zip(self._prompts, bodies, strict=True):
                body["choices"][0]["logprobs"] = prompt.first()
        return b"".join(map(self._chunk, bodies))

    def chunk(self, delta: Delta) -> bytes:
        """A delta as an event; empty if it has nothing to say."""
        if delta.prompt_logprobs is not None:
            return self._prompt_chunk(delta.index, delta.prompt_logprobs)
        traced = delta.step is not None and delta.step.trace is not None
        if self._plain and delta.finish_reason is None and delta.parts is None and not traced:
            if not delta.text:
                return b""
            before, after = self._templates[delta.index]
            return before + orjson.dumps(delta.text) + after
        pieces = self._shape.pieces(delta, self._form)
        if not pieces:
            if self._plain and delta.finish_reason is None and not traced:
                return b""
            pieces = [self._shape.part("")]
        choices: list[dict[str, Any]] = [
            {"index": delta.index, **piece, "logprobs": None, "finish_reason": None} for piece in pieces
        ]
        if self._options.logprobs and delta.logprobs:
            choices[0]["logprobs"] = self._logprobs(delta.index, delta.logprobs)
        if self._options.return_token_ids:
            for number, choice in enumerate(choices):
                choice["token_ids"] = [] if number else delta.token_ids
        if traced and delta.step is not None:
            choices[0]["trace"] = trace_body(delta.step, delta.token_ids)
        if delta.finish_reason is not None:
            choices[-1] |= self._ending(delta)
        return b"".join(self._chunk({"choices": [choice]}) for choice in choices)

    def closing(self) -> bytes:
        """The chunks after all text."""
        if not self._options.include_usage:
            return DONE
        return self._event({"choices": [], "usage": self._usage()}) + DONE

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
        body["usage"] = self._usage()
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
        whole = self._shape.whole(echo + "".join(collected.text), collected.parts, self._form)
        entry = {"index": index, **whole, "logprobs": None}
        if self._options.logprobs:
            entry["logprobs"] = self._logprobs(index, collected.logprobs)
        if self._options.return_token_ids:
            entry["token_ids"] = collected.token_ids
            if self._shape.body_object == "text_completion":
                entry["prompt_token_ids"] = list(self._generation.requests[index].prompt_token_ids)
        if last is not None and last.finish_reason is not None:
            entry |= self._ending(last)
        return entry

    def _ending(self, delta: Delta) -> dict[str, Any]:
        assert delta.finish_reason is not None
        stop_reason = delta.stop_string if delta.stop_token_id is None else delta.stop_token_id
        choice = self._generation.choices[delta.index]
        called = choice.calls and delta.finish_reason is FinishReason.STOP
        return {
            "finish_reason": "tool_calls" if called else delta.finish_reason.value,
            "stop_reason": stop_reason,
            "speculation": speculation_body(choice.usage),
        }

    def _usage(self) -> UsageBody:
        body = usage_body(self._generation.usage)
        if self._form is not None:
            count = sum(choice.reasoning_tokens for choice in self._generation.choices)
            body["completion_tokens_details"] = {"reasoning_tokens": count}
        return body

    def _logprobs(self, index: int, positions: Sequence[PositionLogprobs]) -> Any:
        offset = self._offsets[index]
        self._offsets[index] += sum(len(self._tokenizer.token_text(position.chosen.token_id)) for position in positions)
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

    def pieces(self, delta: Delta, form: AnswerForm | None) -> list[dict[str, Any]]:
        """See Shape."""
        return [self.part(delta.text)]

    def whole(self, text: str, parts: Sequence[AnswerPart] | None, form: AnswerForm | None) -> dict[str, Any]:
        """See Shape."""
        return {"text": text}

    def logprobs(self, positions: Sequence[PositionLogprobs], tokenizer: Tokenizer, offset: int) -> Any:
        """See Shape."""
        body: CompletionLogprobs = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        tops: list[dict[str, float]] = []
        for position in positions:
            name, logprob = token_name(tokenizer, position.chosen.token_id), finite(position.chosen.logprob)
            body["tokens"].append(name)
            body["token_logprobs"].append(logprob)
            body["text_offset"].append(offset)
            offset += len(tokenizer.token_text(position.chosen.token_id))
            likely = {token_name(tokenizer, entry.token_id): finite(entry.logprob) for entry in position.top}
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


def finite(logprob: float) -> float:
    """A log-probability that JSON can hold."""
    return max(logprob, LEAST_LOGPROB)
