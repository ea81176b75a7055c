from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.request import ChoiceRequest, Sampling, StepOutput
from gateway.output_parsers.parts import CallArguments, CallBegin, Content
from gateway.output_parsers.registry import AnswerForm, Names
from gateway.tokens.stream import ChoiceStream
from gateway.tokens.tokenizer import Tokenizer
from slipstream.generation_types import FinishReason, PositionLogprobs, SpeculationStep, TokenLogprob

EOS = frozenset({2})
TEXT = "Water boils at 100 degrees; 東京は雨です。 The answer is 42 and no more."


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return Tokenizer(tokenizer_folder)


def run(tokenizer: Tokenizer, order: ChoiceRequest, token_ids: list[int], cuts: list[int]) -> tuple[object, ...]:
    """Feed `token_ids` in steps that end at `cuts`; returns everything the client sees, joined."""
    stream = ChoiceStream(0, order, tokenizer, EOS)
    bounds = sorted({0, len(token_ids), *(cut % (len(token_ids) + 1) for cut in cuts)})
    text, ids, last = "", [], None
    for begin, end in pairwise(bounds):
        finish = FinishReason.LENGTH if end == len(token_ids) else None
        last = stream.feed(StepOutput(token_ids[begin:end], finish_reason=finish))
        text += last.text
        ids += last.token_ids
        if stream.finished:
            break
    assert last is not None
    return text, ids, last.finish_reason, last.stop_string, last.stop_token_id, stream.usage.completion_tokens


@given(
    cuts=st.lists(st.integers(0, 200), max_size=20),
    stop=st.lists(st.sampled_from(["100 de", "東京", "は雨", "4", "no more.", "s at", "zzz"]), max_size=3, unique=True),
    min_tokens=st.integers(0, 30),
    stop_token=st.integers(0, 511),
)
def test_what_the_client_sees_does_not_depend_on_the_steps(
    tokenizer: Tokenizer, cuts: list[int], stop: list[str], min_tokens: int, stop_token: int
) -> None:
    sampling = Sampling(min_tokens=min_tokens, stop_token_ids=(stop_token,))
    order = ChoiceRequest([1], sampling, stop=tuple(stop))
    token_ids = tokenizer.encode(TEXT, add_special_tokens=False)
    one_by_one = run(tokenizer, order, token_ids, list(range(len(token_ids))))
    assert run(tokenizer, order, token_ids, cuts) == one_by_one


def test_output_ends_at_the_token_that_completes_a_stop_string(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("one two three four", add_special_tokens=False)
    stream = ChoiceStream(0, ChoiceRequest([1], Sampling(), stop=("two",)), tokenizer, EOS)
    logprobs = [PositionLogprobs(TokenLogprob(token_id, -1.0, 1), ()) for token_id in token_ids]
    delta = stream.feed(StepOutput(token_ids, logprobs, SpeculationStep(9, 8, "ngram")))
    assert delta.text == "one "
    assert delta.stop_string == "two"
    assert delta.finish_reason is FinishReason.STOP
    assert tokenizer.decode(delta.token_ids) == "one two"
    assert delta.logprobs == logprobs[: len(delta.token_ids)]
    assert stream.usage.completion_tokens == len(delta.token_ids)


def test_a_stop_token_is_counted_but_not_shown(tokenizer: Tokenizer) -> None:
    hello, bang = tokenizer.encode("a!", add_special_tokens=False)
    stream = ChoiceStream(0, ChoiceRequest([1], Sampling(stop_token_ids=(bang,))), tokenizer, EOS)
    delta = stream.feed(StepOutput([hello, bang, hello]))
    assert (delta.text, delta.token_ids, delta.stop_token_id) == ("a", [hello, bang], bang)
    assert stream.finished


def test_a_special_token_that_tells_parts_apart_is_read_and_not_shown(tokenizer: Tokenizer) -> None:
    form = AnswerForm(Names("hermes", None))
    request = ChoiceRequest([1], Sampling(), answer=form)
    opening = tokenizer.encode("<|user|>", add_special_tokens=False)
    shown = tokenizer.detokenizer(("<|user|>",))
    assert (shown.step(opening[0]), tokenizer.detokenizer().step(opening[0])) == ("<|user|>", "")
    ids = tokenizer.encode('Hi <tool_call>{"name": "f"}</tool_call>', add_special_tokens=False)
    stream = ChoiceStream(0, request, tokenizer, EOS)
    delta = stream.feed(StepOutput([*opening, *ids], finish_reason=FinishReason.LENGTH))
    assert delta.parts == [Content("Hi"), CallBegin(0, "f"), CallArguments(0, "{}")]
    assert (stream.calls, stream.reasoning_tokens) == (1, 0)


def test_the_end_of_sequence_token_ends_unless_ignored(tokenizer: Tokenizer) -> None:
    letter = tokenizer.encode("a", add_special_tokens=False)
    ending = ChoiceStream(0, ChoiceRequest([1], Sampling()), tokenizer, EOS)
    assert ending.feed(StepOutput([*letter, 2])).finish_reason is FinishReason.STOP
    ignoring = ChoiceStream(0, ChoiceRequest([1], Sampling(ignore_eos=True)), tokenizer, EOS)
    delta = ignoring.feed(StepOutput([*letter, 2, *letter]))
    assert (delta.text, delta.finish_reason) == ("aa", None)


def test_text_held_back_for_a_stop_string_comes_out_at_the_end(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("abc", add_special_tokens=False)
    stream = ChoiceStream(0, ChoiceRequest([1], Sampling(), stop=("cd",)), tokenizer, EOS)
    assert stream.feed(StepOutput(token_ids)).text == "ab"
    assert stream.feed(StepOutput([], finish_reason=FinishReason.LENGTH)).text == "c"


def test_usage_adds_up_the_steps(tokenizer: Tokenizer) -> None:
    stream = ChoiceStream(0, ChoiceRequest([1, 1, 1], Sampling(ignore_eos=True)), tokenizer, EOS)
    stream.feed(StepOutput([7], step=SpeculationStep(0, 0, "")))
    stream.feed(StepOutput([7, 8, 9], step=SpeculationStep(5, 2, "ngram"), cached_tokens=2))
    usage = stream.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (3, 4, 2)
    assert (usage.verify_steps, usage.drafted_tokens, usage.accepted_tokens) == (2, 5, 2)
