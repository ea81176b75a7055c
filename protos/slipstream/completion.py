"""What the client is asked for and what it gives back, free of protobuf."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypedDict

from slipstream.generation_types import (
    PositionLogprobs,
    SourceCount,
    SpeculationOptions,
    SpeculationStep,
    StepTrace,
    Timings,
    TokenLogprob,
    TokenOrigin,
    Usage,
)
from slipstream.grammar.grammar import Grammar

__all__ = [
    "Completion",
    "Event",
    "FinishReason",
    "Grammar",
    "Message",
    "Model",
    "Options",
    "PositionLogprobs",
    "SourceCount",
    "SpeculationOptions",
    "SpeculationStep",
    "StepTrace",
    "Timings",
    "TokenLogprob",
    "TokenOrigin",
    "Usage",
    "collect",
]

FinishReason = Literal["stop", "length"]
"""A stop token or string, or the end of max_tokens or the context: what an output can end for that has not failed."""


class Message(TypedDict):
    """One turn of a conversation; `role` is "system", "user" or "assistant"."""

    role: str
    content: str


class Options(TypedDict, total=False):
    """Keyword arguments of a generation. Ranges and defaults are those of slipstream/v1/sampling.proto."""

    model: str
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    max_tokens: int
    min_tokens: int
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    logprobs: int
    prompt_logprobs: int
    stop: str | Sequence[str]
    grammar: Grammar
    speculation: SpeculationOptions
    tenant: str
    adapter_id: str
    choice_index: int
    timeout: float | None  # seconds for the whole call; None waits as long as it takes


@dataclass(frozen=True, slots=True)
class Event:
    """What one verify step added. `seed` is set on the first event; from `finish_reason` on, on the last.

    Events before the output have parts of the prompt's logprobs alone: an entry a token, None for the first one.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[PositionLogprobs, ...] = ()
    step: SpeculationStep | None = None
    seed: int | None = None
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    stop_string: str | None = None
    stop_token_id: int | None = None
    prompt_logprobs: tuple[PositionLogprobs | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole output. `steps` are its verify steps in order.

    `prompt_logprobs` has an entry for each of the prompt's tokens where they were asked for, None for the first.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[PositionLogprobs, ...]
    steps: tuple[SpeculationStep, ...]
    seed: int
    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    stop_string: str | None = None
    stop_token_id: int | None = None
    prompt_logprobs: tuple[PositionLogprobs | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Model:
    """A model that can be asked for."""

    name: str
    max_context: int
    vocab_size: int
    proposers: tuple[str, ...] = field(default=())
    default_proposer: str | None = None
    parent: str | None = None
    """Of a LoRA adapter: the model that it is for."""


def collect(events: Iterable[Event]) -> Completion:
    """The whole output of a stream that has ended. ValueError if it has not."""
    gathered = list(events)
    if not gathered or gathered[-1].finish_reason is None:
        raise ValueError("the stream has not ended")
    first, last = gathered[0], gathered[-1]
    assert last.finish_reason is not None
    assert last.usage is not None
    assert last.timings is not None
    return Completion(
        text="".join(event.text for event in gathered),
        token_ids=tuple(token_id for event in gathered for token_id in event.token_ids),
        logprobs=tuple(entry for event in gathered for entry in event.logprobs),
        steps=tuple(event.step for event in gathered if event.step is not None),
        seed=first.seed or 0,
        finish_reason=last.finish_reason,
        usage=last.usage,
        timings=last.timings,
        stop_string=last.stop_string,
        stop_token_id=last.stop_token_id,
        prompt_logprobs=tuple(entry for event in gathered for entry in event.prompt_logprobs),
    )
