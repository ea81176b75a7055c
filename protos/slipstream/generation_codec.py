"""Between the types of a generation and the messages of slipstream/v1/sampling.proto, for the codecs of all sides."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from slipstream.generation_types import (
    FinishReason,
    PositionLogprobs,
    SourceCount,
    SpeculationOptions,
    SpeculationStep,
    StepTrace,
    Timings,
    TokenLogprob,
    Usage,
)
from slipstream.v1 import sampling_pb2

FINISH_NUMBERS: Final = {
    FinishReason.STOP: sampling_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: sampling_pb2.FINISH_REASON_LENGTH,
    FinishReason.CANCELLED: sampling_pb2.FINISH_REASON_CANCELLED,
    FinishReason.ERROR: sampling_pb2.FINISH_REASON_ERROR,
}

_MOST_KNOWN_STEPS: Final = 1024


def read_speculation(message: sampling_pb2.Speculation) -> SpeculationOptions:
    """Unset fields become None, which takes the operator's default."""
    return SpeculationOptions(
        enabled=message.enabled if message.HasField("enabled") else None,
        proposer=message.proposer,
        max_nodes=message.max_nodes if message.HasField("max_nodes") else None,
        max_depth=message.max_depth if message.HasField("max_depth") else None,
        trace=message.trace,
    )


def write_speculation(options: SpeculationOptions) -> sampling_pb2.Speculation:
    """What is None stays unset."""
    return sampling_pb2.Speculation(
        enabled=options.enabled,
        proposer=options.proposer,
        max_nodes=options.max_nodes,
        max_depth=options.max_depth,
        trace=options.trace,
    )


def read_position(message: sampling_pb2.PositionLogprobs) -> PositionLogprobs:
    """The logprobs of one position."""
    return PositionLogprobs(_read_logprob(message.chosen), tuple(map(_read_logprob, message.top)))


def write_position(position: PositionLogprobs) -> sampling_pb2.PositionLogprobs:
    """The logprobs of one position."""
    return sampling_pb2.PositionLogprobs(chosen=_write_logprob(position.chosen), top=map(_write_logprob, position.top))


def _read_logprob(message: sampling_pb2.TokenLogprob) -> TokenLogprob:
    return TokenLogprob(message.token_id, message.logprob, message.rank)


def _write_logprob(entry: TokenLogprob) -> sampling_pb2.TokenLogprob:
    return sampling_pb2.TokenLogprob(token_id=entry.token_id, logprob=entry.logprob, rank=entry.rank)


def read_step(message: sampling_pb2.SpeculationStep) -> SpeculationStep:
    """What one verify step did. Steps without a trace that are equal are one object: there are few of them."""
    return _read_step(message) if message.HasField("trace") else _known_step(message.SerializeToString())


@lru_cache(_MOST_KNOWN_STEPS)
def _known_step(encoded: bytes) -> SpeculationStep:
    return _read_step(sampling_pb2.SpeculationStep.FromString(encoded))


def _read_step(message: sampling_pb2.SpeculationStep) -> SpeculationStep:
    sources = tuple(map(_read_source, message.sources)) if message.sources else ()
    trace = _read_trace(message.trace) if message.HasField("trace") else None
    return SpeculationStep(message.drafted, message.accepted, message.proposer, sources, trace)


def write_step(step: SpeculationStep, message: sampling_pb2.SpeculationStep) -> None:
    """Fill in `message`, which counts as set even where all is 0."""
    message.drafted, message.accepted, message.proposer = step.drafted, step.accepted, step.proposer
    message.sources.extend(map(write_source, step.sources))
    if step.trace is not None:
        _write_trace(step.trace, message.trace)
    message.SetInParent()


def _read_trace(message: sampling_pb2.StepTrace) -> StepTrace:
    """Slices, as they are taken in one piece; fields that are mostly empty are looked at first."""
    token_ids: Sequence[int | None] = message.token_ids[:]
    if message.withheld:
        withheld = frozenset(message.withheld)
        token_ids = [None if node in withheld else token for node, token in enumerate(token_ids)]
    sources: tuple[str, ...] = ()
    if message.sources:
        names = message.proposers[:]
        sources = tuple([names[source] for source in message.sources[:]])
    return StepTrace(
        message.position,
        tuple(token_ids),
        tuple(message.parents[:]),
        tuple(message.log_probs[:]),
        sources,
        tuple(message.accepted[:]),
        message.pass_rows,
        message.pass_seconds,
        tuple(message.node_texts[:]) if message.node_texts else (),
        tuple(message.texts[:]) if message.texts else (),
    )


def _write_trace(trace: StepTrace, message: sampling_pb2.StepTrace) -> None:
    """Fill in `message`, which counts as set even where all is 0."""
    message.position, message.pass_rows, message.pass_seconds = trace.position, trace.pass_rows, trace.pass_seconds
    if token_ids := trace.token_ids:
        if None in token_ids:
            message.withheld.extend([node for node, token in enumerate(token_ids) if token is None])
        message.token_ids.extend([0 if token is None else token for token in token_ids])
        message.parents.extend(trace.parents)
        message.log_probs.extend(trace.log_probs)
        message.accepted.extend(trace.accepted)
    if trace.sources:
        places = {name: place for place, name in enumerate(dict.fromkeys(trace.sources))}
        message.proposers.extend(places)
        message.sources.extend([places[name] for name in trace.sources])
    if trace.node_texts:
        message.node_texts.extend(trace.node_texts)
    if trace.texts:
        message.texts.extend(trace.texts)
    message.SetInParent()


def _read_source(message: sampling_pb2.SourceCount) -> SourceCount:
    return SourceCount(message.proposer, message.drafted, message.accepted)


def write_source(count: SourceCount) -> sampling_pb2.SourceCount:
    """The part of one proposer in trees of several."""
    return sampling_pb2.SourceCount(proposer=count.proposer, drafted=count.drafted, accepted=count.accepted)


def read_usage(message: sampling_pb2.Usage) -> Usage:
    """Totals of one output."""
    return Usage(
        prompt_tokens=message.prompt_tokens,
        completion_tokens=message.completion_tokens,
        cached_tokens=message.cached_tokens,
        verify_steps=message.verify_steps,
        drafted_tokens=message.drafted_tokens,
        accepted_tokens=message.accepted_tokens,
    )


def write_usage(usage: Usage) -> sampling_pb2.Usage:
    """Totals of one output."""
    return sampling_pb2.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
        verify_steps=usage.verify_steps,
        drafted_tokens=usage.drafted_tokens,
        accepted_tokens=usage.accepted_tokens,
    )


def read_timings(message: sampling_pb2.Timings) -> Timings:
    """Seconds from the request's arrival."""
    return Timings(message.queued, message.first_token, message.total)


def write_timings(timings: Timings) -> sampling_pb2.Timings:
    """Seconds from the request's arrival."""
    return sampling_pb2.Timings(queued=timings.queued, first_token=timings.first_token, total=timings.total)
