"""Structured answers over HTTP: what reaches the verify service, and whose fields its refusals name."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from slipstream.grammar.codec import decode_grammar
from slipstream.grammar.grammar import Grammar
from slipstream.rpc.errors import InvalidArgumentError
from support.fake_verify import FakeVerify
from support.tool_template import CALL, WEATHER, ScriptedModel

ASK: list[Any] = [{"role": "user", "content": "How is Oslo?"}]


class Report(BaseModel):
    city: str
    degrees: int


def test_each_choice_is_asked_for_with_the_grammar(
    tool_client: openai.OpenAI, model: ScriptedModel, tool_verify: FakeVerify
) -> None:
    model.says('{"city": "Oslo", "degrees": -3}')
    answer = tool_client.chat.completions.parse(model="tiny", messages=ASK, response_format=Report, n=2)
    assert [choice.message.parsed for choice in answer.choices] == [Report(city="Oslo", degrees=-3)] * 2
    grammars = [decode_grammar(submit.sampling.grammar) for submit in tool_verify.seen.submits]
    assert len(grammars) == 2
    assert json.loads(grammars[0].json_schema or "")["required"] == ["city", "degrees"]
    assert grammars[0] == grammars[1]


def test_an_answer_that_asks_for_nothing_has_no_grammar(
    tool_client: openai.OpenAI, model: ScriptedModel, tool_verify: FakeVerify
) -> None:
    model.says("Fine.")
    tool_client.chat.completions.create(model="tiny", messages=ASK, response_format={"type": "text"})
    assert not tool_verify.seen.submits[0].sampling.HasField("grammar")


def test_a_call_goes_on_where_a_verify_service_broke_off(
    tool_client: openai.OpenAI, model: ScriptedModel, tool_verify: FakeVerify
) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": ASK, "tools": [WEATHER], "tool_choice": "required"}

    def streamed() -> Any:
        with tool_client.chat.completions.stream(**asked) as stream:
            stream.until_done()
            return stream.get_final_completion().choices[0].message.tool_calls[0].function

    model.says(CALL, tokens_per_step=2)
    whole = streamed()
    model.says(CALL, tokens_per_step=2)
    tool_verify.script.breaks = [4, 30, 31, 50]
    assert streamed() == whole
    first, *resumed = tool_verify.seen.submits
    assert not first.output_token_ids
    assert len(resumed) >= 3
    assert all(submit.output_token_ids and submit.sampling.grammar == first.sampling.grammar for submit in resumed)


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"extra_body": {"structured_outputs": {"regex": "a+"}}}, "structured_outputs.regex"),
        ({"tools": [WEATHER], "tool_choice": "required"}, "tools"),
    ],
)
def test_what_the_verify_service_refuses_is_named_as_the_caller_wrote_it(
    tool_client: openai.OpenAI, tool_verify: FakeVerify, asked: dict[str, Any], field: str
) -> None:
    error = InvalidArgumentError("grammar takes longer to compile than the limit of 2 s", field="grammar")
    tool_verify.reset(error=error)
    with pytest.raises(openai.BadRequestError) as caught:
        tool_client.chat.completions.create(model="tiny", messages=ASK, **asked)
    assert caught.value.param == field
    assert caught.value.message.endswith(f"{field} takes longer to compile than the limit of 2 s")


def test_completions_take_the_same(tool_client: openai.OpenAI, model: ScriptedModel, tool_verify: FakeVerify) -> None:
    model.says("yes")
    options: Any = {"structured_outputs": {"choice": ["yes", "no"]}}
    answer = tool_client.completions.create(model="tiny", prompt=["a", "b"], max_tokens=9, extra_body=options)
    assert [choice.text for choice in answer.choices] == ["yes", "yes"]
    grammars = {decode_grammar(submit.sampling.grammar) for submit in tool_verify.seen.submits}
    assert grammars == {Grammar(choice=("yes", "no"))}
