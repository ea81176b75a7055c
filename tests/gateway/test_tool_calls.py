"""Tools and reasoning over HTTP, as the official client asks for them and joins what it is told."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from support.tool_template import CALL, WEATHER, ScriptedModel

ASK: list[Any] = [{"role": "user", "content": "How is Oslo?"}]
THOUGHT = "<think>\nThe weather, then.\n</think>\n\n"
ARGUMENTS = '{"city": "Oslo", "days": 2}'


@pytest.mark.parametrize("tokens_per_step", [1, 7, 1000])
def test_calls_reasoning_and_content_are_told_apart(
    tool_client: openai.OpenAI, model: ScriptedModel, tokens_per_step: int
) -> None:
    model.says(f"{THOUGHT}I ask.\n{CALL}\n{CALL}", tokens_per_step=tokens_per_step)
    answer = tool_client.chat.completions.create(model="tiny", messages=ASK, tools=[WEATHER])
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert (choice.message.content, choice.message.reasoning) == ("I ask.", "The weather, then.")
    calls = choice.message.tool_calls
    assert [(call.type, call.function.name, call.function.arguments) for call in calls] == [
        ("function", "get_weather", ARGUMENTS)
    ] * 2
    assert calls[0].id != calls[1].id
    thinking = answer.usage.completion_tokens_details.reasoning_tokens
    assert 0 < thinking < answer.usage.completion_tokens
    assert '"name": "get_weather"' in model.prompt


@pytest.mark.parametrize("tokens_per_step", [1, 7, 1000])
def test_a_stream_joins_to_the_same_answer(
    tool_client: openai.OpenAI, model: ScriptedModel, tokens_per_step: int
) -> None:
    model.says(f"{THOUGHT}I ask.\n{CALL}\n{CALL}", tokens_per_step=tokens_per_step)
    events = []
    with tool_client.chat.completions.stream(
        model="tiny", messages=ASK, tools=[openai_strict()], stream_options={"include_usage": True}
    ) as stream:
        for event in stream:
            events.append(event.type)
            if event.type == "chunk":
                check_deltas(event.chunk)
        final = stream.get_final_completion()
    message = final.choices[0].message
    assert (final.choices[0].finish_reason, message.content, message.reasoning) == (
        "tool_calls", "I ask.", "The weather, then."
    )  # fmt: skip
    assert [call.function.parsed_arguments for call in message.tool_calls] == [json.loads(ARGUMENTS)] * 2
    assert events.count("tool_calls.function.arguments.done") == 2
    assert final.usage.completion_tokens_details.reasoning_tokens > 0


def openai_strict() -> Any:
    """The tool as the client's helpers want it."""
    return WEATHER | {"function": WEATHER["function"] | {"strict": True}}


def check_deltas(chunk: Any) -> None:
    """Each chunk says one thing, and only a call's first one says which tool it is of."""
    for choice in chunk.choices:
        said = choice.delta.model_dump(exclude_unset=True)
        assert len(set(said) - {"role"}) <= 1
        for call in said.get("tool_calls", ()):
            assert isinstance(call["index"], int)
            assert ("id" in call) == ("type" in call) == ("name" in call["function"])


def test_a_loop_of_calls_and_results_goes_on(tool_client: openai.OpenAI, model: ScriptedModel) -> None:
    model.says(CALL)
    messages = list(ASK)
    answer = tool_client.chat.completions.create(model="tiny", messages=messages, tools=[WEATHER]).choices[0].message
    assert answer.content is None
    messages += [answer, {"role": "tool", "tool_call_id": answer.tool_calls[0].id, "content": "rain"}]
    model.says("It rains.")
    final = tool_client.chat.completions.create(model="tiny", messages=messages, tools=[WEATHER])
    assert (final.choices[0].message.content, final.choices[0].finish_reason) == ("It rains.", "stop")
    assert f"<|assistant|>\n{CALL}<|end|><|user|><tool_response>rain</tool_response><|end|>" in model.prompt


def test_a_custom_tool_has_its_input_as_text(tool_client: openai.OpenAI, model: ScriptedModel) -> None:
    tool: Any = {"type": "custom", "custom": {"name": "run", "description": "Runs code."}}
    model.says('<tool_call>{"name": "run", "arguments": {"input": "print(\\"a\\")\\n"}}</tool_call>')
    messages = list(ASK)
    answer = tool_client.chat.completions.create(model="tiny", messages=messages, tools=[tool]).choices[0].message
    (call,) = answer.tool_calls
    assert (call.type, call.custom.name, call.custom.input) == ("custom", "run", 'print("a")\n')
    chunks = tool_client.chat.completions.create(model="tiny", messages=messages, tools=[tool], stream=True)
    entries = [entry for chunk in chunks for entry in chunk.choices[0].delta.tool_calls or ()]
    assert "".join(entry.custom["input"] for entry in entries) == 'print("a")\n'
    model.says("Done.")
    messages += [answer, {"role": "tool", "tool_call_id": call.id, "content": "a"}]
    assert tool_client.chat.completions.create(model="tiny", messages=messages).choices[0].message.content == "Done."
    assert '{"input": "print(\\"a\\")\\n"}' in model.prompt


def test_without_a_choice_of_tools_the_prompt_has_none_and_tags_are_text(
    tool_client: openai.OpenAI, model: ScriptedModel
) -> None:
    model.says(CALL)
    answer = tool_client.chat.completions.create(model="tiny", messages=ASK, tools=[WEATHER], tool_choice="none")
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (CALL, "stop")
    assert "get_weather" not in model.prompt


def test_reasoning_can_be_left_out_or_switched_off(tool_client: openai.OpenAI, model: ScriptedModel) -> None:
    def answer(**extra: Any) -> Any:
        return tool_client.chat.completions.create(model="tiny", messages=ASK, **extra).choices[0].message

    model.says(f"{THOUGHT}Fine.")
    assert "reasoning" not in answer(extra_body={"include_reasoning": False}).model_dump()
    model.says("Fine <think>")
    for off in ({"reasoning_effort": "none"}, {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}):
        message = answer(**off)
        assert (message.content, message.reasoning) == ("Fine <think>", None)
        assert model.prompt.endswith("<think>\n\n</think>\n\n")


def test_an_answer_that_is_cut_off_in_its_reasoning_has_no_content(
    tool_client: openai.OpenAI, model: ScriptedModel
) -> None:
    model.says(THOUGHT)
    choice = tool_client.chat.completions.create(model="tiny", messages=ASK, max_tokens=11).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("length", None)
    assert THOUGHT[8:].startswith(choice.message.reasoning)


FUNCTION = WEATHER["function"]


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({"tools": [WEATHER, WEATHER]}, "tools", "get_weather is declared twice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice", "g is"),
        ({"tool_choice": "required"}, "tool_choice", "without tools"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", "pattern"),
        ({"tools": [{"type": "web"}]}, "tools[0].type", "'function'"),
        ({"tools": [{"type": "function", "function": FUNCTION | {"wings": 2}}]}, "tools[0].function.wings", "unknown"),
        (
            {"tools": [{"type": "function", "function": FUNCTION | {"parameters": {"type": "string"}}}]},
            "tools[0].function.parameters",
            "of an object",
        ),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "get_weather"}},
         "tool_choice.function", "missing"),
        ({"functions": [FUNCTION]}, "functions", "use tools"),
        ({"function_call": {"name": "f"}}, "function_call", "tool_choice"),
        ({"reasoning_effort": "low"}, "reasoning_effort", "medium"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages", "not the caller's"),
        (
            {"tools": [{"type": "custom", "custom": {"name": "c", "format": {"type": "grammar", "grammar": {
                "syntax": "lark", "definition": "start: A"}}}}]},
            "tools[0].custom.format.grammar.definition",
            "the terminal A is not defined",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_by_name(
    tool_client: openai.OpenAI, body: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        tool_client.chat.completions.create(model="tiny", messages=ASK, extra_body=body)
    assert caught.value.param == field
    assert words in caught.value.message


def test_a_template_that_knows_no_tools_refuses_them(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="chat template") as caught:
        client.chat.completions.create(model="tiny", messages=ASK, tools=[WEATHER])
    assert caught.value.param == "tools"
