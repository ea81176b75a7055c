"""The official `openai` client, and `instructor` on top of it, unchanged against `slipstream serve`, the demo model."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import httpx
import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field

from benchmarks.lib.server_process import Server, served
from benchmarks.structured.matrix import TEMPLATE
from support.gateway_process import GatewayProcess

MODEL = "slipstream-demo"
ASK: list[Any] = [{"role": "user", "content": "How is the weather in Oslo, and what is 2 plus 3?"}]
INSTRUCTOR = Path(sys.prefix) / "instructor" / "bin" / "python"


class Sky(Enum):
    CLEAR = "clear"
    CLOUDY = "cloudy"


class Place(BaseModel):
    city: str = Field(max_length=8)
    height: int = Field(ge=0, le=99)


class Report(BaseModel):
    """All that the client's strict schemas are made of: definitions, references, unions, lists, bounds."""

    place: Place
    sky: Sky
    wind: Literal["north", "south"] | None
    near: list[Place] = Field(max_length=1)
    rain: bool


class GetWeather(BaseModel):
    """The weather of a city."""

    city: str = Field(max_length=8)
    unit: Literal["C", "F"]


class Add(BaseModel):
    """Adds two numbers."""

    a: int = Field(ge=0, le=9)
    b: int = Field(ge=0, le=9)


TOOLS = [openai.pydantic_function_tool(GetWeather), openai.pydantic_function_tool(Add, name="add")]


@pytest.fixture(scope="module")
def server(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("serve") / "log"
    with served(demo_model, ("ngram",), log, "--chat-template", str(TEMPLATE)) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.http}/v1", api_key="none", max_retries=0)


def bias_of(server: Server, text: str, bias: float) -> dict[str, float]:
    """A bias for the only token of a text."""
    asked = {"prompt": text, "add_special_tokens": False}
    (token,) = httpx.post(f"{server.http}/tokenize", json=asked, timeout=60).json()["tokens"]
    return {str(token): bias}


def test_parse_and_stream_in_all_their_forms_give_one_answer(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": ASK, "response_format": Report, "max_tokens": 300, "seed": 1,
                             "temperature": 1}  # fmt: skip
    first = client.chat.completions.parse(**asked, extra_body={"speculation": {"enabled": False}}).choices[0]
    assert isinstance(first.message.parsed, Report)
    assert first.finish_reason == "stop"
    again = client.beta.chat.completions.parse(**asked).choices[0].message
    raw = client.chat.completions.with_raw_response.parse(**asked).parse().choices[0].message
    with client.chat.completions.stream(**asked) as stream:
        events = list(stream)
        final = stream.get_final_completion().choices[0].message
    deltas = [event for event in events if event.type == "content.delta"]
    assert "".join(event.delta for event in deltas) == first.message.content
    assert any(isinstance(event.parsed, dict) and 0 < len(event.parsed) < 5 for event in deltas)
    assert [event.parsed for event in events if event.type == "content.done"] == [first.message.parsed]

    async def others() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=client.base_url, api_key="none", max_retries=0) as asking:
            parsed = await asking.chat.completions.parse(**asked)
            async with asking.beta.chat.completions.stream(**asked) as stream:
                streamed = await stream.get_final_completion()
            return [parsed.choices[0].message, streamed.choices[0].message]

    for message in (again, raw, final, *asyncio.run(others())):
        assert (message.content, message.parsed) == (first.message.content, first.message.parsed)


def test_an_answer_that_is_cut_off_raises_what_the_client_says_it_does(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": ASK, "response_format": Report, "max_tokens": 5}
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(**asked)
    with pytest.raises(openai.LengthFinishReasonError), client.chat.completions.stream(**asked) as stream:
        stream.until_done()


def test_a_loop_of_parallel_strict_calls(client: openai.OpenAI, server: Server) -> None:
    messages = list(ASK)
    asked: dict[str, Any] = {"model": MODEL, "tools": TOOLS, "tool_choice": "required", "max_tokens": 300, "seed": 1,
                             "temperature": 0}  # fmt: skip
    one = client.chat.completions.parse(messages=messages, parallel_tool_calls=False, **asked)
    assert len(one.choices[0].message.tool_calls) == 1
    # The answer may end where a call ends, and does so as soon as it is long enough for a second one.
    ends = {"logit_bias": bias_of(server, "<|end|>", 100), "extra_body": {"min_tokens": one.usage.completion_tokens}}
    answer = client.chat.completions.parse(messages=messages, **asked, **ends).choices[0]
    calls = answer.message.tool_calls
    assert (answer.finish_reason, answer.message.content, len(calls)) == ("tool_calls", None, 2)
    assert calls[0].function.arguments == one.choices[0].message.tool_calls[0].function.arguments
    assert all(isinstance(call.function.parsed_arguments, (GetWeather, Add)) for call in calls)
    with client.chat.completions.stream(messages=messages, **asked, **ends) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        streamed = stream.get_final_completion().choices[0].message.tool_calls
    assert [event.index for event in done] == [0, 1]
    assert [event.parsed_arguments for event in done] == [call.function.parsed_arguments for call in calls]
    assert [call.function.arguments for call in streamed] == [call.function.arguments for call in calls]
    for sent in (answer.message, answer.message.model_dump(), answer.message.model_dump(exclude_none=True)):
        results = [{"role": "tool", "tool_call_id": call.id, "content": "7"} for call in calls]
        final = client.chat.completions.parse(messages=[*messages, sent, *results], **asked | {"tool_choice": "auto"})
        assert final.choices[0].finish_reason in ("stop", "tool_calls")


QUERY = r'SELECT "[a-z]{1,5}"\n  FROM \\[a-z]{1,5};'
QUERY_IN_LARK = r"""
start: "SELECT " QUOTED "\n  FROM \\" NAME ";"
QUOTED: "\"" NAME "\""
NAME: /[a-z]{1,5}/
"""


@pytest.mark.parametrize(("syntax", "definition"), [("regex", QUERY), ("lark", QUERY_IN_LARK)])
def test_the_input_of_a_custom_tool_matches_its_grammar(client: openai.OpenAI, syntax: str, definition: str) -> None:
    form = {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}
    tool: Any = {"type": "custom", "custom": {"name": "query", "format": form}}
    named: Any = {"type": "custom", "custom": {"name": "query"}}
    asked: dict[str, Any] = {"model": MODEL, "messages": ASK, "tools": [tool], "max_tokens": 200, "seed": 1}
    for choice in (named, "required"):
        options = asked | {"tool_choice": choice, "parallel_tool_calls": False}
        (call,) = client.chat.completions.create(**options).choices[0].message.tool_calls
        assert (call.type, call.custom.name) == ("custom", "query")
        assert re.fullmatch(QUERY, call.custom.input)
        chunks = client.chat.completions.create(**options, stream=True)
        entries = [entry for chunk in chunks for entry in chunk.choices[0].delta.tool_calls or ()]
        assert "".join(entry.custom["input"] for entry in entries) == call.custom.input


@pytest.mark.parametrize("calls", [True, False])
def test_an_answer_is_a_call_or_json_as_the_model_likes(client: openai.OpenAI, server: Server, calls: bool) -> None:
    biases = bias_of(server, "<", 100 if calls else -100)
    with client.chat.completions.stream(
        model=MODEL, messages=ASK, tools=TOOLS, response_format=Report, logit_bias=biases, temperature=0,
        parallel_tool_calls=False, max_tokens=300,
    ) as stream:  # fmt: skip
        stream.until_done()
        choice = stream.get_final_completion().choices[0]
    if calls:
        assert choice.finish_reason == "tool_calls"
        assert isinstance(choice.message.tool_calls[0].function.parsed_arguments, (GetWeather, Add))
    else:
        assert choice.finish_reason == "stop"
        assert isinstance(choice.message.parsed, Report)


COUNTED = "{{ '<tool_call>' if tools }}{% for message in messages %}{{ message.content }}{% endfor %}"
"""A template that takes tools and shows none, so that many fit the context."""


def many_tools(count: int) -> list[Any]:
    """Tools that differ in their nested parameters."""
    tools = []
    for number in range(count):
        place = {"type": "object", "properties": {"city": {"enum": ["Oslo", f"Rome{number}"]}}, "required": ["city"],
                 "additionalProperties": False}  # fmt: skip
        schema = {"type": "object", "properties": {f"p{number}": place}, "required": [f"p{number}"],
                  "additionalProperties": False}  # fmt: skip
        tools.append({"type": "function", "function": {"name": f"tool_{number}", "strict": True, "parameters": schema}})
    return tools


def test_the_demo_model_calls_a_strict_tool_of_its_own_accord(server: Server, demo_model: Path) -> None:
    """By its own chat template: with `tool_choice` auto free text is possible, and its trigger alone begins a call."""
    parameters = {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    }
    tool: Any = {
        "type": "function",
        "function": {
            "name": "get_weather", "description": "The weather in a city", "strict": True, "parameters": parameters,
        },
    }  # fmt: skip
    with GatewayProcess(demo_model, server.verify) as gateway:
        client = openai.OpenAI(base_url=f"{gateway.http_url}/v1", api_key="none", max_retries=0)
        asked: dict[str, Any] = {
            "model": MODEL, "messages": [{"role": "user", "content": "What is the weather in Oslo?"}],
            "tools": [tool], "tool_choice": "auto", "max_tokens": 100,
        }  # fmt: skip
        for sampling in ({"temperature": 0.0}, {"temperature": 0.3, "top_p": 0.9, "seed": 4}):
            for speculation in ({"enabled": False}, {"enabled": True}):
                more = {"extra_body": {"speculation": speculation}}
                choice = client.chat.completions.parse(**asked, **sampling, **more).choices[0]
                (call,) = choice.message.tool_calls or ()
                assert (choice.finish_reason, call.function.name) == ("tool_calls", "get_weather")
                assert call.function.parsed_arguments == {"city": "Oslo"} and not choice.message.content
        with client.chat.completions.stream(**asked, temperature=0.0) as stream:
            (streamed,) = stream.get_final_completion().choices[0].message.tool_calls or ()
        assert streamed.function.parsed_arguments == {"city": "Oslo"}


def test_as_many_tools_as_may_be_are_called_and_more_are_refused_by_name(
    server: Server, demo_model: Path, tmp_path: Path
) -> None:
    template = tmp_path / "tools.jinja"
    template.write_text(COUNTED, "utf-8")
    tools = many_tools(128)
    asked: dict[str, Any] = {"model": MODEL, "messages": ASK, "max_tokens": 200, "temperature": 1}
    with GatewayProcess(demo_model, server.verify, "--chat-template", str(template)) as gateway:
        client = openai.OpenAI(base_url=f"{gateway.http_url}/v1", api_key="none", max_retries=0)
        for seed in range(3):
            forced = {"tools": tools, "tool_choice": "required", "parallel_tool_calls": False, "seed": seed}
            (call,) = client.chat.completions.parse(**asked, **forced).choices[0].message.tool_calls
            schema = tools[int(call.function.name.removeprefix("tool_"))]["function"]["parameters"]
            jsonschema.validate(call.function.parsed_arguments, schema)
        last: Any = {"type": "function", "function": {"name": "tool_127"}}
        (named,) = client.chat.completions.create(**asked, tools=tools, tool_choice=last).choices[0].message.tool_calls
        assert named.function.name == "tool_127"
        with pytest.raises(openai.BadRequestError, match="at most 128") as caught:
            client.chat.completions.create(**asked, tools=many_tools(129), tool_choice="required")
        assert caught.value.param == "tools"


@pytest.mark.skipif(
    not INSTRUCTOR.exists(),
    reason="needs `make instructor`: it wants rich below 15 and jiter below 0.15, unlike services and the newest "
    "official client, so it has an environment of its own",
)
def test_instructor_gets_models_retries_and_parts(server: Server) -> None:
    script = Path(__file__).parent / "data" / "instructor" / "client.py"
    command = [INSTRUCTOR, script, f"{server.http}/v1", MODEL]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert run.returncode == 0, run.stderr
    for mode, got in json.loads(run.stdout).items():
        assert got["reason"] == ("tool_calls" if mode == "TOOLS" else "stop")
        assert set(got["person"]) == {"name", "mood", "home", "tags"}
        assert got["at_once"] == [got["person"]] * 2
        assert len(got["attempts"]) == 3
        assert got["messages"] == [1, 3, 5]
        assert got["picky"]["mood"] == got["attempts"][-1]
        assert len(got["parts"]) > 5
        assert got["parts"][0]["mood"] is None
        assert set(got["parts"][-1]["home"]) == {"street", "number"}
        assert got["parts"][-1]["tags"] is not None
