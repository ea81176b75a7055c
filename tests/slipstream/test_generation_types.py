"""The types that client, gateway and verify service share: there is one of each, and the wire gives them back equal."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

import gateway.core.request
import slipstream
from slipstream import completion, generation_codec, generation_types
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
from slipstream.v1 import sampling_pb2, verify_pb2
from verify_service.core import request

SHARED = (
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
USAGE = Usage(1, 6, 3, 4, 5, 2)


def test_every_side_has_the_very_same_types() -> None:
    for shared in SHARED:
        name = shared.__name__
        assert getattr(completion, name) is shared
        assert name in completion.__all__
        for module in (gateway.core.request, request):
            assert getattr(module, name, shared) is shared
    assert slipstream.SpeculationOptions is SpeculationOptions
    assert gateway.core.request.FinishReason is request.FinishReason is generation_types.FinishReason


def test_users_see_plain_frozen_values() -> None:
    assert repr(USAGE) == (
        "Usage(prompt_tokens=1, completion_tokens=6, cached_tokens=3, verify_steps=4, drafted_tokens=5,"
        " accepted_tokens=2)"
    )
    assert Usage(1, 6, 3, 4, 5, 2) == USAGE != Usage(1, 6, 3, 4, 5, 1)
    assert hash(Usage(1, 6, 3, 4, 5, 2)) == hash(USAGE)
    assert (USAGE.acceptance_length, Usage(1, 0, 0, 0, 0, 0).acceptance_length) == (1.5, 0.0)
    with pytest.raises(FrozenInstanceError):
        USAGE.prompt_tokens = 2  # type: ignore[misc]  # what must fail
    assert repr(SourceCount("p", 2, 1)) == "SourceCount(proposer='p', drafted=2, accepted=1)"


def test_what_is_written_is_read_back_equal() -> None:
    step = SpeculationStep(3, 2, "p", (SourceCount("q", 1, 0), SourceCount("r", 2, 2)))
    message = sampling_pb2.SpeculationStep()
    generation_codec.write_step(step, message)
    assert generation_codec.read_step(message) == step
    position = PositionLogprobs(TokenLogprob(5, -0.5, 1), (TokenLogprob(5, -0.5, 1), TokenLogprob(6, -1.0, 2)))
    assert generation_codec.read_position(generation_codec.write_position(position)) == position
    assert generation_codec.read_usage(generation_codec.write_usage(USAGE)) == USAGE
    timings = Timings(0.25, 0.5, 1.0)
    assert generation_codec.read_timings(generation_codec.write_timings(timings)) == timings
    for options in (SpeculationOptions(), SpeculationOptions(enabled=False, proposer="p", max_nodes=0, max_depth=0)):
        assert generation_codec.read_speculation(generation_codec.write_speculation(options)) == options
    assert set(generation_codec.FINISH_NUMBERS) == set(generation_types.FinishReason)


def test_a_plain_step_of_the_output_is_not_the_same_as_none() -> None:
    output = verify_pb2.RequestOutput()
    generation_codec.write_step(SpeculationStep(0, 0, ""), output.step)
    assert verify_pb2.RequestOutput.FromString(output.SerializeToString()).HasField("step")


def test_a_trace_survives_the_wire() -> None:
    trace = StepTrace(
        position=9,
        token_ids=(5, None, 0),
        parents=(-1, 0, -1),
        log_probs=(-0.5, -1.0, -2.0),
        sources=("suffix", "suffix", "ngram"),
        accepted=(0,),
        pass_rows=12,
        pass_seconds=0.25,
        node_texts=("a", "", "b"),
        texts=("a", "c"),
    )
    for sent in (trace, StepTrace(0)):
        message, step = sampling_pb2.SpeculationStep(), SpeculationStep(3, 1, "hybrid", trace=sent)
        generation_codec.write_step(step, message)
        assert generation_codec.read_step(sampling_pb2.SpeculationStep.FromString(message.SerializeToString())) == step
    options = SpeculationOptions(trace=True)
    assert generation_codec.read_speculation(generation_codec.write_speculation(options)) == options


def test_tokens_of_a_step_say_how_they_came() -> None:
    drafted, plain = SpeculationStep(5, 1, "ngram"), SpeculationStep(0, 0, "")
    assert [drafted.origin(index) for index in range(2)] == [TokenOrigin.DRAFT, TokenOrigin.BONUS]
    assert plain.origin(0) is TokenOrigin.TARGET
