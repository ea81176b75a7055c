"""Texts of a traced choice's tokens, and of what was drafted."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.request import ChoiceRequest, Sampling, StepOutput
from gateway.tokens.stream import ChoiceStream
from gateway.tokens.tokenizer import Tokenizer
from slipstream.generation_types import FinishReason, SpeculationOptions, SpeculationStep, StepTrace

EOS = 2
TEXT = "Water boils at 100 degrees; 東京は雨です。"


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return Tokenizer(tokenizer_folder)


def stream_of(tokenizer: Tokenizer, **fields: object) -> ChoiceStream:
    request = ChoiceRequest([1], Sampling(), SpeculationOptions(trace=True), **fields)  # type: ignore[arg-type]
    return ChoiceStream(0, request, tokenizer, frozenset({EOS}))


def traced(tokens: list[int], nodes: tuple[int | None, ...] = ()) -> StepOutput:
    trace = StepTrace(0, nodes, tuple(range(-1, len(nodes) - 1)))
    return StepOutput(tokens, step=SpeculationStep(len(nodes), 0, "ngram", trace=trace))


@given(cuts=st.sets(st.integers(1, 40)), incomplete=st.booleans())
def test_texts_of_tokens_make_up_the_text_wherever_steps_end(
    tokenizer: Tokenizer, cuts: set[int], incomplete: bool
) -> None:
    ids = tokenizer.encode(TEXT, add_special_tokens=False)[: -1 if incomplete else None]
    stream, text, texts = stream_of(tokenizer), "", []
    bounds = sorted({0, len(ids), *(cut for cut in cuts if cut < len(ids))})
    for begin, end in pairwise(bounds):
        output = traced(ids[begin:end])
        output.finish_reason = FinishReason.LENGTH if end == len(ids) else None
        delta = stream.feed(output)
        assert delta.step is not None and delta.step.trace is not None
        assert len(delta.step.trace.texts) == end - begin
        text += delta.text
        texts += delta.step.trace.texts
    assert "".join(texts) == text


def test_an_ending_token_has_no_text_and_nothing_after_it_counts(tokenizer: Tokenizer) -> None:
    one, two = tokenizer.encode("ab", add_special_tokens=False)[:1], tokenizer.encode("c", add_special_tokens=False)
    delta = stream_of(tokenizer).feed(traced([*one, EOS, *two]))
    assert delta.step is not None and delta.step.trace is not None
    assert (delta.token_ids, len(delta.step.trace.texts), delta.step.trace.texts[-1]) == ([*one, EOS], 2, "")


def test_tokens_behind_a_stop_string_have_no_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("one two three", add_special_tokens=False)
    delta = stream_of(tokenizer, stop=("two",)).feed(traced(ids))
    assert delta.step is not None and delta.step.trace is not None
    assert len(delta.step.trace.texts) == len(delta.token_ids) < len(ids)


def test_nodes_have_texts_of_their_own_but_withheld_ones(tokenizer: Tokenizer) -> None:
    (node,) = tokenizer.encode("a", add_special_tokens=False)
    delta = stream_of(tokenizer).feed(traced([5], (node, None)))
    assert delta.step is not None and delta.step.trace is not None
    assert delta.step.trace.node_texts == ("a", "")


def test_a_choice_that_is_not_traced_keeps_its_steps(tokenizer: Tokenizer) -> None:
    output = StepOutput([5], step=SpeculationStep(0, 0, ""))
    stream = ChoiceStream(0, ChoiceRequest([1], Sampling(), SpeculationOptions()), tokenizer, frozenset({EOS}))
    assert stream.feed(output).step is output.step
