"""Requests of every kind that both public APIs take, and the manners in which clients ask them.

A question is what an answer is a function of; a manner (drafting, streaming, how the client reads) may change no token.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Api = Literal["grpc", "completions", "chat/completions"]
Reading = Literal["steadily", "slowly", "in two parts", "leaves", "cut off"]
"""`in two parts`: the body is sent in two parts with a pause between. `leaves`: the client closes its connection in
mid-stream; `cut off`: in mid-body."""

APIS: tuple[Api, ...] = ("grpc", "completions", "chat/completions")
TOPICS = (
    *("the harbour at six in the morning", "a cyclist in the slipstream of another", "bread and patience"),
    *("why water boils", "a letter to a grandmother", "stars and sailors", "an old map", "trains in the snow"),
)
LEAVING: frozenset[Reading] = frozenset({"leaves", "cut off"})
"""After these no answer is expected."""
SHORT, MIDDLE, LONG = (1, 24), (40, 120), (200, 600)
"""Tokens of answers, from and to."""
LONG_PROMPT = 40
"""Times a topic is repeated in a long prompt."""
STOPS = (".", " the", "\n\n", "zebra", " and a")


@dataclass(frozen=True, slots=True)
class Question:
    """`options` are named as both APIs name them. `n` above 1 goes with HTTP alone."""

    number: int
    api: Api
    text: str
    options: Mapping[str, Any] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    n: int = 1

    @property
    def most_tokens(self) -> int:
        """Of all choices together."""
        return int(self.options["max_tokens"]) * self.n


@dataclass(frozen=True, slots=True)
class Manner:
    """How a question is put. `speculation` None leaves drafting to the server."""

    speculation: Mapping[str, Any] | None
    streamed: bool
    reading: Reading = "steadily"

    @property
    def expects_answer(self) -> bool:
        return self.reading not in LEAVING


PLAIN = Manner({"enabled": False}, streamed=False)
"""How reference answers are asked for: whole, and without speculation."""


def questions(count: int, seed: int, *, longest: int = LONG[1]) -> list[Question]:
    """So many different questions, the same for equal arguments; no answer is longer than `longest` tokens."""
    draw = random.Random(f"questions {seed}")
    return [_question(draw, index, longest) for index in range(count)]


def _question(draw: random.Random, index: int, longest: int) -> Question:
    api = APIS[index % len(APIS)]
    topic = draw.choice(TOPICS)
    text = f"Request {index}. Tell me about {topic}."
    if draw.random() < 0.15:
        text += f" {topic}" * LONG_PROMPT
    low, high = draw.choices((SHORT, MIDDLE, LONG), weights=(3, 4, 3))[0]
    options: dict[str, Any] = {
        "max_tokens": max(1, min(longest, draw.randint(low, high))),
        "temperature": draw.choice((0.0, 0.7, 1.0)),
        "seed": draw.randrange(2**32),
    }
    if options["temperature"] and draw.random() < 0.4:
        options["top_p"] = 0.9
    if draw.random() < 0.2:
        options |= {"presence_penalty": 0.4, "frequency_penalty": 0.2}
    if draw.random() < 0.7:
        options["ignore_eos"] = True
    if draw.random() < 0.3:
        options["logprobs"] = draw.randint(0, 3)
    stop = tuple(draw.sample(STOPS, draw.randint(1, 2))) if draw.random() < 0.25 else ()
    n = draw.randint(2, 3) if api != "grpc" and draw.random() < 0.25 else 1
    return Question(index, api, text, options, stop, n)


class Manners:
    """Draws manners. `proposers` may be asked for by name; `faithful`: every client reads its answer to the end."""

    def __init__(self, draw: random.Random, proposers: Sequence[str], *, faithful: bool = False) -> None:
        self._draw = draw
        self._speculation: list[Mapping[str, Any] | None] = [None, {"enabled": False}]
        if proposers:
            self._speculation.append({"enabled": True})
            self._speculation += [{"enabled": True, "proposer": name} for name in proposers]
            self._speculation.append({"proposer": proposers[0], "max_nodes": 8, "max_depth": 3})
        self._faithful = faithful

    def next(self, question: Question) -> Manner:
        """A manner that fits the question's API: gRPC streams, and what is sent in parts are bodies of HTTP."""
        draw = self._draw
        manner = Manner(draw.choice(self._speculation), streamed=question.api == "grpc" or draw.random() < 0.6)
        if self._faithful:
            return manner
        readings: list[Reading] = ["steadily", "in two parts", "cut off"] if question.api != "grpc" else ["steadily"]
        if manner.streamed:
            readings += ["slowly", "leaves"]
        return replace(manner, reading=draw.choices(readings, [20] + [1] * (len(readings) - 1))[0])


def http_body(question: Question, manner: Manner, model: str) -> dict[str, Any]:
    """The JSON body of a question under its endpoint."""
    body: dict[str, Any] = {**question.options, "model": model, "n": question.n, "return_token_ids": True}
    if question.api == "completions":
        body["prompt"] = question.text
    else:
        body["messages"] = [{"role": "user", "content": question.text}]
        if "logprobs" in body:
            body["top_logprobs"], body["logprobs"] = body["logprobs"], True
    if question.stop:
        body["stop"] = list(question.stop)
    if manner.speculation is not None:
        body["speculation"] = dict(manner.speculation)
    if manner.streamed:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body
