"""Messages of VerifyService: fields arrive, unset ones take their defaults, bad bytes are the client's error."""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.generation_codec import read_step
from slipstream.generation_types import (
    FinishReason,
    PositionLogprobs,
    SourceCount,
    SpeculationOptions,
    SpeculationStep,
    Timings,
    TokenLogprob,
    Usage,
)
from slipstream.rpc.errors import InvalidArgumentError, ResourceExhaustedError
from slipstream.v1 import sampling_pb2, verify_pb2
from verify_service.core.adapters import Adapter, AdapterState
from verify_service.core.prompt_scores import PromptScores
from verify_service.core.request import GenerationRequest, RequestKey, SamplingParams, StepOutput
from verify_service.core.sampling_codec import decode_sampling, encode_sampling
from verify_service.core.sampling_validation import validate_sampling
from verify_service.draft_link.link_state import DrafterState, LinkState, ProposerStatus
from verify_service.draft_link.slots.draft_stats import DraftStats
from verify_service.engine.loop_stats import LoopState
from verify_service.server.cache_watch import CacheReport, WatchCache
from verify_service.server.codec import CancelRequest, decode_session_request, encode_info, encode_outputs, encode_state
from verify_service.server.server_info import ServerInfo
from verify_service.speculation.forecast import Forecast

FULL = SamplingParams(
    temperature=0.5,
    top_k=7,
    top_p=0.75,
    min_p=0.25,
    seed=2**64 - 1,
    repetition_penalty=1.5,
    presence_penalty=-1.5,
    frequency_penalty=2.0,
    logit_bias=((3, -100.0), (9, 0.5)),
    max_tokens=12,
    min_tokens=3,
    stop_token_ids=(4, 4, 5),
    ignore_eos=True,
    logprobs=0,
    prompt_logprobs=5,
)


def submit(**fields: object) -> bytes:
    return verify_pb2.SessionRequest(submit=verify_pb2.Submit(**fields)).SerializeToString()


def test_a_submit_arrives_whole() -> None:
    data = submit(
        request_id=2**64 - 1,
        prompt_token_ids=[1, 2],
        output_token_ids=[3],
        sampling=encode_sampling(FULL),
        speculation=sampling_pb2.Speculation(enabled=False, proposer="p", max_nodes=0, max_depth=0),
        tenant="t",
        adapter_id="a",
        choice_index=5,
        weight=2.5,
    )
    assert decode_session_request(data, 8, 1.5) == GenerationRequest(
        key=RequestKey(8, 2**64 - 1),
        prompt_token_ids=(1, 2),
        output_token_ids=(3,),
        sampling=FULL,
        speculation=SpeculationOptions(enabled=False, proposer="p", max_nodes=0, max_depth=0),
        tenant="t",
        adapter_id="a",
        choice_index=5,
        weight=2.5,
        arrival=1.5,
    )


def test_unset_fields_take_the_defaults() -> None:
    request = decode_session_request(submit(prompt_token_ids=[1]), 8, 0.0)
    assert isinstance(request, GenerationRequest)
    assert request.sampling == SamplingParams()
    assert request.speculation == SpeculationOptions()
    assert request.weight == 1.0


def test_zero_is_not_unset() -> None:
    params = decode_sampling(sampling_pb2.SamplingParams(temperature=0.0, seed=0, max_tokens=0, top_p=0.0))
    assert (params.temperature, params.seed, params.max_tokens, params.top_p) == (0.0, 0, 0, 0.0)


@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "repetition_penalty", "frequency_penalty"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_refused_by_name(field: str, value: float) -> None:
    params = decode_sampling(sampling_pb2.SamplingParams(**{field: value}))
    with pytest.raises(InvalidArgumentError, match=field) as caught:
        validate_sampling(params, vocab_size=512)
    assert caught.value.field == field


def test_a_bias_that_is_no_number_is_refused() -> None:
    params = decode_sampling(sampling_pb2.SamplingParams(logit_bias={1: math.nan}))
    with pytest.raises(InvalidArgumentError, match="logit_bias"):
        validate_sampling(params, vocab_size=512)


def test_a_cancel_names_its_request() -> None:
    message = verify_pb2.SessionRequest(cancel=verify_pb2.Cancel(request_id=7))
    assert decode_session_request(message.SerializeToString(), 8, 0.0) == CancelRequest(RequestKey(8, 7))


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_random_bytes_are_requests_or_the_clients_error(data: bytes) -> None:
    with contextlib.suppress(InvalidArgumentError):
        assert isinstance(decode_session_request(data, 1, 0.0), GenerationRequest | CancelRequest | WatchCache)


def test_outputs_are_written_whole() -> None:
    entry = PositionLogprobs(TokenLogprob(5, -0.5, 1), (TokenLogprob(5, -0.5, 1), TokenLogprob(6, -1.0, 2)))
    last = StepOutput(
        RequestKey(8, 7),
        token_ids=(5,),
        logprobs=(entry,),
        step=SpeculationStep(3, 2, "p", (SourceCount("q", 1, 0), SourceCount("r", 2, 2))),
        finish_reason=FinishReason.LENGTH,
        usage=Usage(1, 2, 3, 4, 5, 6),
        timings=Timings(0.25, 0.5, 1.0),
        seed=0,
    )
    refused = StepOutput(
        RequestKey(8, 9),
        finish_reason=FinishReason.ERROR,
        error=ResourceExhaustedError("full", field="f", retry_after=2.5),
    )
    begun = StepOutput(RequestKey(8, 6), token_ids=(1,), usage=Usage(8, 1, 4, 1, 0, 0))
    data = encode_outputs([last, StepOutput(RequestKey(8, 8)), refused, begun], [6, 5])
    response = verify_pb2.SessionResponse.FromString(data)
    first, empty, error, running = response.outputs
    assert list(response.started) == [6, 5]
    assert (running.usage.cached_tokens, running.finish_reason) == (4, 0)
    assert (first.request_id, list(first.token_ids), first.seed, first.HasField("seed")) == (7, [5], 0, True)
    assert (first.logprobs[0].chosen.token_id, first.logprobs[0].top[1].logprob) == (5, -1.0)
    assert (first.step.drafted, first.step.accepted, first.step.proposer) == (3, 2, "p")
    assert [(each.proposer, each.drafted, each.accepted) for each in first.step.sources] == [("q", 1, 0), ("r", 2, 2)]
    assert first.finish_reason == sampling_pb2.FINISH_REASON_LENGTH
    usage = first.usage
    assert [getattr(usage, field.name) for field in usage.DESCRIPTOR.fields] == [1, 2, 3, 4, 5, 6]
    assert (first.timings.queued, first.timings.first_token, first.timings.total) == (0.25, 0.5, 1.0)
    assert (empty.HasField("seed"), empty.HasField("step"), empty.HasField("usage")) == (False, False, False)
    assert (error.error.code, error.error.message, error.error.field) == (8, "full", "f")
    assert error.error.retry_after == 2.5


@given(
    st.lists(
        st.tuples(
            st.integers(0, 9),
            st.lists(st.integers(0, 2**32 - 1), max_size=4),
            st.sampled_from((None, SpeculationStep(0, 0, ""), SpeculationStep(3, 2, "p", (SourceCount("q", 1, 0),)))),
            st.sampled_from((None, 0, 7)),
        )
    )
)
def test_outputs_of_tokens_alone_share_nothing(
    told: list[tuple[int, list[int], SpeculationStep | None, int | None]],
) -> None:
    outputs = [StepOutput(RequestKey(8, each), tuple(ids), step=step, seed=seed) for each, ids, step, seed in told]
    response = verify_pb2.SessionResponse.FromString(encode_outputs(outputs))
    for (request, ids, step, seed), output in zip(told, response.outputs, strict=True):
        assert (output.request_id, list(output.token_ids)) == (request, ids)
        assert (output.HasField("step"), output.HasField("seed")) == (step is not None, seed is not None)
        assert step is None or read_step(output.step) == step
    alone = b"".join(encode_outputs([output]) for output in outputs)
    assert alone == encode_outputs(outputs)


def test_logprobs_of_a_prompt_arrive_as_flat_lists() -> None:
    scores = PromptScores(
        3,
        np.array([-1.5, -0.25], dtype=np.float32),
        np.array([7, 1], dtype=np.int32),
        np.array([[4, 5, 6], [1, 2, 3]], dtype=np.int32),
        -np.arange(6, dtype=np.float32).reshape(2, 3),
    )
    data = encode_outputs([StepOutput(RequestKey(8, 7), prompt_scores=scores)])
    (output,) = verify_pb2.SessionResponse.FromString(data).outputs
    found = output.prompt_logprobs
    assert (found.first_position, list(found.logprobs), list(found.ranks), found.top) == (3, [-1.5, -0.25], [7, 1], 3)
    assert (list(found.top_ids), list(found.top_logprobs)) == ([4, 5, 6, 1, 2, 3], [0, -1, -2, -3, -4, -5])
    assert not (output.token_ids or output.finish_reason)


def test_news_of_the_cache_are_asked_for_and_told() -> None:
    asked = verify_pb2.SessionRequest(watch_cache=verify_pb2.WatchCache()).SerializeToString()
    assert isinstance(decode_session_request(asked, 1, 0.0), WatchCache)
    told = verify_pb2.SessionResponse.FromString(encode_outputs([], [], CacheReport(3, True, (2**64 - 1,), (5,))))
    assert (told.cache.sequence, told.cache.snapshot) == (3, True)
    assert (list(told.cache.added), list(told.cache.evicted)) == ([2**64 - 1], [5])
    assert not verify_pb2.SessionResponse.FromString(encode_outputs([], [4])).HasField("cache")


def test_info_and_state_carry_every_figure() -> None:
    facts = ServerInfo("n", "/m", "fp", "tp", 10, 20, 3, 4, (1, 2), "fast", "cuda", 16, 99, 64, 123, "0.1", "triton", 2)
    info = verify_pb2.GetInfoResponse.FromString(encode_info(facts, [ProposerStatus("p", True, None)], None, (), 2.5))
    assert (info.model_name, info.max_context, list(info.eos_token_ids), info.num_pages) == ("n", 20, [1, 2], 99)
    assert (info.proposers[0].name, info.proposers[0].configured, info.proposers[0].attached) == ("p", True, False)
    assert (info.default_proposer, info.mode, info.attention, info.tensor_parallel_size) == ("", "fast", "triton", 2)
    assert (info.serving_seconds, info.cache_events, info.page_size) == (2.5, True, 16)
    stats = DraftStats(5, 6, 7, 8, 9, 15, {"q": SourceCount("q", 8, 9)})
    drafter = DrafterState(1, "d", "host:2", 3, "shm", "p", 4, 0.5, 10, 16, stats, 0.017, 0.018)
    came = time.monotonic() - 60
    loop = LoopState(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, True, prompt_tokens=21, oldest_arrival=came)
    red = AdapterState(Adapter("red", "red@1", 0, 8, "/red"), leaving=True, running=1, waiting=2, requests=3)
    loop = replace(loop, adapters=(red,), forecast=Forecast(6, 5, 4.0, 3.0, 2.0, 1.0))
    state = verify_pb2.GetStateResponse.FromString(
        encode_state(loop, LinkState(12, 13, 14, 15, 16, 17, 0.0025, (drafter,)))
    )
    assert [state.running, state.queued, state.pages_total, state.pages_free, state.pages_cached] == [1, 2, 3, 4, 5]
    assert [state.steps, state.committed_tokens, state.drafted_tokens, state.accepted_tokens] == [6, 7, 8, 9]
    assert [state.preemptions, state.prefix_hit_tokens, state.draining] == [10, 11, True]
    assert 60 <= state.oldest_wait_seconds < 90 and state.prompt_tokens == 21
    assert [getattr(state.forecast, field.name) for field in state.forecast.DESCRIPTOR.fields] == [6, 5, 4, 3, 2, 1]
    told = state.adapters[0]
    assert (told.adapter.id, told.adapter.rank, told.adapter.path) == ("red@1", 8, "/red")
    assert (told.leaving, told.running, told.waiting, told.requests) == (True, 1, 2, 3)
    assert [state.attachments, state.draft_waits, state.draft_misses] == [12, 13, 14]
    assert [state.stale_records, state.malformed_records, state.draft_deadline_us] == [15, 16, 2500]
    values = [getattr(state.drafters[0], field.name) for field in state.drafters[0].DESCRIPTOR.fields]
    source = sampling_pb2.SourceCount(proposer="q", drafted=8, accepted=9)
    assert values[:14] == [1, "d", "host:2", 3, "shm", "p", 4, 5, 6, 7, 8, 9, 0.5, 10]
    assert values[14:] == [[source], 15, 16, 17_000, 18_000]
