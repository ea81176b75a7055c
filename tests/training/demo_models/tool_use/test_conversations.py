"""Conversations made by code: what they want is said in them, fits their schemas, and is read back by the gateway."""

import json
from random import Random
from typing import Any

import jsonschema
import pytest

from gateway.output_parsers.parts import CallArguments, CallBegin, Content, joined
from gateway.output_parsers.registry import AnswerForm, detected, new_parser
from training.demo_models.tokenizer import CHAT_TEMPLATE
from training.demo_models.tool_use.bank import BANK, HELD_OUT, held_out, trained
from training.demo_models.tool_use.conversations import BARE, CALL, CALLS, KEYS, PLAIN, RESULT, SCHEMA, SHARES, Maker
from training.demo_models.tool_use.encode import template
from training.demo_models.tool_use.values import spoken

CHATS = [("Why is the sky blue?", "Because of the air."), ("Who are you?", "I am Slipstream.")]
NAMES = detected(CHAT_TEMPLATE)
RENDERING = template()


@pytest.fixture(params=["training", "evaluation"])
def maker(request: pytest.FixtureRequest) -> Maker:
    return Maker.of_training(CHATS) if request.param == "training" else Maker.of_evaluation(CHATS)


def answer_of(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str:
    """The text of the last answer, as the template writes it."""
    prompt = RENDERING.render(messages[:-1], tools=tools)
    whole = RENDERING.render(messages, tools=tools, add_generation_prompt=False)
    assert whole.startswith(prompt) and whole.endswith("<|end|>")
    return whole[len(prompt) : -len("<|end|>")]


@pytest.mark.parametrize("kind", [CALL, CALLS])
def test_the_gateway_reads_the_calls_that_are_wanted(maker: Maker, kind: str) -> None:
    assert NAMES.tools == "hermes"
    for seed in range(60):
        made = maker.make(Random(seed), kind)
        parser = new_parser(AnswerForm(names=NAMES))
        parts = joined([*parser.push(answer_of(made.messages, made.tools)), *parser.finish()])
        assert [part.name for part in parts if isinstance(part, CallBegin)] == [call["name"] for call in made.wanted]
        arguments = [json.loads(part.text) for part in parts if isinstance(part, CallArguments)]
        assert arguments == [call["arguments"] for call in made.wanted]
        assert not any(isinstance(part, Content) for part in parts)
        assert len(made.wanted) == (2 if kind == CALLS else 1)


@pytest.mark.parametrize("kind", [CALL, CALLS])
def test_arguments_fit_their_tools_and_are_said_in_the_question(maker: Maker, kind: str) -> None:
    for seed in range(100):
        made = maker.make(Random(seed), kind)
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in made.tools}
        assert len(schemas) == len(made.tools)
        question = made.messages[-2]["content"]
        for call in made.wanted:
            jsonschema.validate(call["arguments"], schemas[call["name"]])
            for value in call["arguments"].values():
                assert value is True or spoken(value) in question


@pytest.mark.parametrize("kind", [SCHEMA, KEYS, BARE])
def test_objects_fit_their_schemas_and_are_told_of_in_the_prompt(maker: Maker, kind: str) -> None:
    answers = {answer for _, answer in CHATS}
    for seed in range(100):
        made = maker.make(Random(seed), kind)
        assert made.schema is not None
        jsonschema.validate(made.wanted, made.schema)
        assert json.loads(answer_of(made.messages, made.tools)) == made.wanted
        prompt = RENDERING.render(made.messages[:-1])
        for value in made.wanted.values():
            told = [value] if not isinstance(value, list) or not isinstance(value[0], dict) else value
            leaves = [leaf for each in told for leaf in (each.values() if isinstance(each, dict) else (each,))]
            for leaf in leaves:
                assert spoken(leaf) in prompt or leaf in answers or leaf in ("positive", "negative", "neutral")
        if kind == SCHEMA:
            assert json.dumps(made.schema) in prompt


def test_a_result_is_told_of_and_a_question_of_something_else_is_answered_in_words(maker: Maker) -> None:
    for seed in range(40):
        told = maker.make(Random(seed), RESULT)
        assert [message["role"] for message in told.messages[-3:]] == ["assistant", "tool", "assistant"]
        assert "{" not in told.messages[-1]["content"] and told.wanted is None
        plain = maker.make(Random(seed), PLAIN)
        assert plain.tools and (plain.messages[-2]["content"], plain.messages[-1]["content"]) in CHATS


def test_equal_seeds_make_equal_conversations(maker: Maker) -> None:
    assert [maker.make(Random(3)) for _ in range(3)] == [maker.make(Random(3)) for _ in range(3)]
    assert sum(SHARES.values()) == pytest.approx(1)


def test_what_is_held_out_is_not_trained_on() -> None:
    assert len(held_out()) == len(HELD_OUT) and len(trained()) + len(held_out()) == len(BANK)
    names = {name for function in trained() for name in function.names}
    assert not names & {name for function in held_out() for name in function.names}
