"""Requests that can never be served are refused with the field, the limit and the figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slipstream.generation_types import FinishReason, SpeculationOptions
from slipstream.rpc.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from support.verify_loop import PROPOSER, RandomTrees
from verify_service.core.adapters import Adapter, LoadedAdapters
from verify_service.core.draft_source import DraftSource, NoDrafts
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import GenerationRequest, RequestKey, SamplingParams
from verify_service.scheduler.admission import Admission

REQUEST = GenerationRequest(RequestKey(1, 2), (1, 2, 3), arrival=0.0)
EOS = 2


def admission(trees: DraftSource | None = None, num_pages: int = 64, max_nodes: int = 64) -> Admission:
    config = EngineConfig(num_pages=num_pages, page_size=16, max_nodes=max_nodes)
    return Admission(config, trees or NoDrafts(), vocab_size=512, max_context=256, eos_token_ids=(EOS,))


def test_defaults_are_filled_in() -> None:
    state = admission().admit(REQUEST)
    assert state.parameters.max_length == 256
    assert state.parameters.sampling.seed == state.parameters.seed
    assert state.parameters.stop_token_ids == {EOS}
    assert state.draft.proposer == ""
    assert state.tokens == [1, 2, 3]
    assert state.finish_reason is None


def test_a_trace_leaves_the_size_of_trees_to_the_server() -> None:
    desk = admission()
    for trace in (False, True):
        assert desk.admit(replace(REQUEST, speculation=SpeculationOptions(trace=trace))).draft.adaptive
        assert not desk.admit(replace(REQUEST, speculation=SpeculationOptions(max_nodes=4, trace=trace))).draft.adaptive


def test_seeds_are_kept_or_drawn() -> None:
    desk = admission()
    assert desk.admit(replace(REQUEST, sampling=SamplingParams(seed=7))).parameters.seed == 7
    assert desk.admit(REQUEST).parameters.seed != desk.admit(REQUEST).parameters.seed


def test_ignore_eos_keeps_stop_tokens() -> None:
    params = SamplingParams(ignore_eos=True, stop_token_ids=(9,))
    assert admission().admit(replace(REQUEST, sampling=params)).parameters.stop_token_ids == {9}


@pytest.mark.parametrize(
    ("change", "field", "figures"),
    [
        ({"prompt_token_ids": ()}, "prompt_token_ids", ["at least one"]),
        ({"prompt_token_ids": (1, 512)}, "prompt_token_ids", ["prompt_token_ids[1] is 512", "511"]),
        ({"prompt_token_ids": (1,) * 256}, "prompt_token_ids", ["256", "255"]),
        ({"output_token_ids": (-1,)}, "output_token_ids", ["output_token_ids[0] is -1", "511"]),
        ({"output_token_ids": (1,) * 254}, "output_token_ids", ["254", "253"]),
        ({"sampling": SamplingParams(max_tokens=254)}, "max_tokens", ["254", "256", "253"]),
        ({"sampling": SamplingParams(min_tokens=254)}, "min_tokens", ["254", "253"]),
        ({"sampling": SamplingParams(top_p=3.0)}, "top_p", ["3.0", "1.0"]),
        ({"tenant": "é" * 129}, "tenant", ["258", "256"]),
        ({"weight": 0.0}, "weight", ["0", "0.01", "100"]),
        ({"weight": float("nan")}, "weight", ["nan", "0.01"]),
        ({"choice_index": -1}, "choice_index", ["-1", "0"]),
        ({"speculation": SpeculationOptions(proposer="nobody")}, "speculation.proposer", ["'nobody'"]),
        ({"speculation": SpeculationOptions(max_nodes=65)}, "speculation.max_nodes", ["65", "64"]),
        ({"speculation": SpeculationOptions(max_nodes=0)}, "speculation.max_nodes", ["0", "1"]),
        ({"speculation": SpeculationOptions(max_depth=64)}, "speculation.max_depth", ["64", "63"]),
    ],
)
def test_refusals_name_field_and_limit(change: dict[str, object], field: str, figures: list[str]) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        admission().admit(replace(REQUEST, **change))  # type: ignore[arg-type]  # the table mixes fields
    assert refused.value.field == field
    for figure in figures:
        assert figure in refused.value.message


def test_adapters_are_named_or_held_to_their_content() -> None:
    adapters = LoadedAdapters()
    adapters.add(Adapter("a", "a@11", slot=3, rank=8, path=""))
    config = EngineConfig(num_pages=64, max_adapters=4)
    desk = Admission(config, NoDrafts(), adapters, vocab_size=512, max_context=256, eos_token_ids=(EOS,))
    assert desk.admit(REQUEST).parameters.adapter_slot == -1
    for wanted in ("a", "a@11"):
        state = desk.admit(replace(REQUEST, adapter_id=wanted, tenant="t"))
        assert (state.parameters.adapter_slot, state.namespace) == (3, ("t", "a@11"))
    with pytest.raises(NotFoundError, match="no adapter 'b' is loaded; loaded: 'a'") as refused:
        desk.admit(replace(REQUEST, adapter_id="b"))
    assert refused.value.field == "adapter_id"
    with pytest.raises(FailedPreconditionError, match="holds other weights than the 'a@12'"):
        desk.admit(replace(REQUEST, adapter_id="a@12"))
    adapters.retire("a")
    with pytest.raises(NotFoundError, match="loaded: none"):
        desk.admit(replace(REQUEST, adapter_id="a"))


def test_without_max_tokens_the_cache_may_end_the_output() -> None:
    assert admission(num_pages=4).admit(REQUEST).parameters.max_length == 64
    with pytest.raises(InvalidArgumentError, match=r"prompt of 64 tokens.* need 5 KV pages") as refused:
        admission(num_pages=4).admit(replace(REQUEST, prompt_token_ids=(1,) * 64))
    assert refused.value.field == "prompt_token_ids"


def test_a_request_that_alone_cannot_fit_is_refused_with_figures() -> None:
    desk = admission(num_pages=4)
    desk.admit(replace(REQUEST, sampling=SamplingParams(max_tokens=61)))
    with pytest.raises(InvalidArgumentError) as refused:
        desk.admit(replace(REQUEST, sampling=SamplingParams(max_tokens=62)))
    assert refused.value.field == "max_tokens"
    for figure in ("3 tokens", "62", "5 KV pages", "16 tokens", "has 4", "64 tokens"):
        assert figure in refused.value.message


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (SpeculationOptions(), (PROPOSER, 32, 31)),
        (SpeculationOptions(proposer=PROPOSER, max_nodes=8, max_depth=4), (PROPOSER, 8, 4)),
        (SpeculationOptions(max_nodes=64), (PROPOSER, 32, 31)),
        (SpeculationOptions(enabled=False), ("", 32, 31)),
        (SpeculationOptions(max_nodes=1), ("", 1, 31)),
        (SpeculationOptions(max_depth=0), ("", 32, 0)),
    ],
)
def test_speculation_takes_the_operators_defaults(params: SpeculationOptions, expected: tuple[str, int, int]) -> None:
    state = admission(RandomTrees(512), max_nodes=32).admit(replace(REQUEST, speculation=params))
    assert (state.draft.proposer, state.draft.max_nodes, state.draft.max_depth) == expected


def test_a_resumed_request_may_be_over_at_once() -> None:
    desk = admission()
    ended = replace(REQUEST, output_token_ids=(7, EOS))
    assert desk.admit(ended).finish_reason is FinishReason.STOP
    full = replace(REQUEST, output_token_ids=(7, 8), sampling=SamplingParams(max_tokens=2))
    assert desk.admit(full).finish_reason is FinishReason.LENGTH
    assert desk.admit(replace(REQUEST, prompt_token_ids=(1, EOS))).finish_reason is None
