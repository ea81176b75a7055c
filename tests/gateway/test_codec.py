"""What goes to a verify service and comes from it, as the gateway writes and reads it."""

from __future__ import annotations

import pytest

from gateway import codec
from gateway.core.request import ChoiceRequest, Sampling
from slipstream.generation_types import FinishReason, SpeculationOptions
from slipstream.grammar.grammar import Grammar
from slipstream.request_context import RequestContext
from slipstream.v1 import verify_pb2


def test_an_end_for_a_reason_of_a_later_version_is_an_error_of_that_request_alone() -> None:
    message = verify_pb2.RequestOutput.FromString(
        verify_pb2.RequestOutput(request_id=3, finish_reason=9).SerializeToString()
    )
    assert codec.read_output(message).finish_reason is FinishReason.ERROR


@pytest.mark.parametrize("encoded", [False, True])
@pytest.mark.parametrize("received", [[], [7, 300, 70_000]])
def test_a_submit_in_parts_is_read_as_one_message(encoded: bool, received: list[int]) -> None:
    prompt = [1, 128, 40_000] * 50
    grammar = Grammar(choice=("a", "b"), starts_after=(3,))
    order = ChoiceRequest(
        prompt, Sampling(temperature=0.5, seed=2**60, logit_bias={3: 1.5}, max_tokens=9, prompt_logprobs=2,
                         grammar=grammar),
        speculation=SpeculationOptions(proposer="ngram", max_nodes=8), tenant="a", adapter_id="b", choice_index=5,
        weight=2.0, context=RequestContext("named", "parent", "state"),
        prompt_wire=codec.write_prompt(prompt) if encoded else b"",
        grammar_wire=codec.write_grammar(grammar) if encoded else b"",
    )  # fmt: skip
    head = codec.write_submit(11, order, resumed=bool(received))
    submit = verify_pb2.SessionRequest.FromString(codec.complete_submit(head, order, received)).submit
    assert submit == verify_pb2.Submit(
        request_id=11, prompt_token_ids=prompt, output_token_ids=received, tenant="a", adapter_id="b", choice_index=5,
        sampling={"temperature": 0.5, "seed": 2**60, "logit_bias": {3: 1.5}, "max_tokens": 9, "ignore_eos": False,
                  "grammar": {"choice": {"texts": ["a", "b"]}, "starts_after": [3]},
                  **({} if received else {"prompt_logprobs": 2})},
        speculation={"proposer": "ngram", "max_nodes": 8}, weight=2.0,
        context={"request_id": "named", "traceparent": "parent", "tracestate": "state"},
    )  # fmt: skip


def test_choices_share_the_bytes_of_their_grammar() -> None:
    order = ChoiceRequest([1], Sampling(seed=1, grammar=Grammar(json_schema="x" * 2**18)))
    assert len(codec.write_submit(11, order, resumed=False)) < 100


def test_a_stream_that_is_resumed_stays_traced() -> None:
    request = ChoiceRequest([1, 2], Sampling(seed=1), SpeculationOptions(trace=True))
    head = codec.write_submit(1, request, resumed=True)
    submit = verify_pb2.SessionRequest.FromString(codec.complete_submit(head, request, [5, 6])).submit
    assert submit.speculation.trace and list(submit.output_token_ids) == [5, 6]


def test_services_that_hold_keys_and_values_otherwise_do_not_continue_one_another() -> None:
    plain, coded = (
        codec.read_info(verify_pb2.GetInfoResponse(model_fingerprint="a", mode="exact", kv_cache_dtype=dtype))
        for dtype in ("bfloat16", "fp8_e4m3")
    )
    assert plain.fingerprint == coded.fingerprint and plain.continues(plain)
    assert not plain.continues(coded)
