"""Structured answers and forced calls through all services, as clients of both APIs ask for them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import jsonschema
import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field

from slipstream import Client, Grammar
from slipstream.rpc.errors import InvalidArgumentError
from support.cluster import Cluster
from support.gateway_process import GatewayProcess
from support.schemas import ENDLESS
from support.tool_template import TEMPLATE

ASK: list[Any] = [{"role": "user", "content": "How is the weather?"}]
PROPOSERS = ("ngram", "draft-model")


class Sky(Enum):
    CLEAR = "clear"
    CLOUDY = "cloudy"


class Report(BaseModel):
    model_config = ConfigDict(extra="forbid")

    sky: Sky
    wind: Literal["north", "south"] | None
    rain: bool
    hours: list[Literal[6, 12, 18]] = Field(max_length=3)


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}, "hourly": {"type": "boolean"}},
            "required": ["city", "hourly"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def client(tiny_cluster: Cluster) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{tiny_cluster.http_url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def tool_client(
    tiny_cluster: Cluster, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[openai.OpenAI]:
    """Before the same verify service, with a template that takes tools."""
    template = tmp_path_factory.mktemp("template") / "tools.jinja"
    template.write_text(TEMPLATE, "utf-8")
    verify = tiny_cluster.layout.verify_address
    with GatewayProcess(tiny_model, verify, "--chat-template", str(template)) as gateway:
        yield openai.OpenAI(base_url=f"{gateway.http_url}/v1", api_key="none", max_retries=0)


def speculation(proposer: str | None) -> dict[str, Any]:
    return {"speculation": {"enabled": False} if proposer is None else {"proposer": proposer}, "return_token_ids": True}


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 1}, {"temperature": 1, "top_p": 0.9}])
def test_parsed_answers_fit_their_model_and_no_proposer_shows(client: openai.OpenAI, sampling: dict[str, Any]) -> None:
    def answer(proposer: str | None) -> Any:
        return client.chat.completions.parse(
            model="tiny-target", messages=ASK, response_format=Report, seed=5, max_tokens=400,
            extra_body=speculation(proposer), **sampling,
        ).choices[0]  # fmt: skip

    plain = answer(None)
    assert isinstance(plain.message.parsed, Report)
    assert plain.finish_reason == "stop"
    jsonschema.validate(json.loads(plain.message.content), Report.model_json_schema())
    for proposer in PROPOSERS:
        drafted = answer(proposer)
        assert (drafted.message.content, drafted.token_ids) == (plain.message.content, plain.token_ids)


def test_streamed_answers_are_parsed_at_their_end(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="tiny-target", messages=ASK, response_format=Report, seed=6, max_tokens=400
    ) as stream:
        kinds = {event.type for event in stream}
        parsed = stream.get_final_completion().choices[0].message.parsed
    assert isinstance(parsed, Report)
    assert {"chunk", "content.delta", "content.done"} <= kinds


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"choice": ["yes", "no"]}, ("yes", "no")),
        ({"regex": "a{3}|b{2}"}, ("aaa", "bb")),
        ({"grammar": 'start: "x" ("y" | "z")'}, ("xy", "xz")),
        ({"json": {"enum": [1, [2, "é"]]}, "disable_any_whitespace": True}, ("1", '[2,"é"]')),
    ],
)
def test_plain_completions_match_what_they_are_asked_for(
    client: openai.OpenAI, options: dict[str, Any], expected: tuple[str, ...]
) -> None:
    for seed in range(3):
        answer = client.completions.create(
            model="tiny-target", prompt="Say", seed=seed, max_tokens=40, extra_body={"structured_outputs": options}
        ).choices[0]
        assert answer.text in expected
        assert answer.finish_reason == "stop"


def test_forced_calls_have_valid_arguments_in_answer_and_stream(tool_client: openai.OpenAI) -> None:
    named: Any = {"type": "function", "function": {"name": "get_weather"}}
    schema = WEATHER["function"]["parameters"]
    for choice in ("required", named):
        asked: dict[str, Any] = {"model": "tiny-target", "messages": ASK, "tools": [WEATHER], "tool_choice": choice,
                                 "seed": 3, "max_tokens": 250, "parallel_tool_calls": False}  # fmt: skip
        answer = tool_client.chat.completions.create(**asked).choices[0]
        (call,) = answer.message.tool_calls
        assert (answer.finish_reason, call.function.name) == ("tool_calls", "get_weather")
        jsonschema.validate(json.loads(call.function.arguments), schema)
        with tool_client.chat.completions.stream(**asked) as stream:
            stream.until_done()
            (streamed,) = stream.get_final_completion().choices[0].message.tool_calls
        assert streamed.function.arguments == call.function.arguments
        jsonschema.validate(streamed.function.parsed_arguments, schema)


def test_a_loop_of_forced_call_and_free_answer(tool_client: openai.OpenAI) -> None:
    messages = list(ASK)
    asked: dict[str, Any] = {"model": "tiny-target", "tools": [WEATHER], "max_tokens": 250, "seed": 4}
    answer = tool_client.chat.completions.parse(messages=messages, tool_choice="required", parallel_tool_calls=False,
                                                **asked).choices[0].message  # fmt: skip
    (call,) = answer.tool_calls
    assert set(call.function.parsed_arguments) == {"city", "hourly"}
    messages += [answer, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    final = tool_client.chat.completions.create(messages=messages, tool_choice="none", **(asked | {"max_tokens": 8}))
    assert final.choices[0].message.tool_calls is None
    assert final.choices[0].finish_reason == "length"


def test_grpc_takes_the_same_grammars(tiny_cluster: Cluster, client: openai.OpenAI) -> None:
    schema = json.dumps(Report.model_json_schema())
    with Client(tiny_cluster.gateway_grpc) as grpc:
        answer = grpc.generate("Say", grammar=Grammar(json_schema=schema), max_tokens=400, seed=7)
        Report.model_validate_json(answer.text)
        with pytest.raises(InvalidArgumentError, match="not") as caught:
            grpc.generate("Say", grammar=Grammar(json_schema='{"not": {}}'))
        assert caught.value.field == "sampling.grammar.json_schema"
        with pytest.raises(InvalidArgumentError, match=r"slipstream\.Grammar"):
            grpc.generate("Say", grammar={"regex": "a"})  # type: ignore[typeddict-item]
    same = client.completions.create(model="tiny-target", prompt="Say", seed=7, max_tokens=400,
                                     extra_body={"structured_outputs": {"json": schema}})  # fmt: skip
    assert same.choices[0].text == answer.text


def test_others_are_served_while_hostile_schemas_are_refused(client: openai.OpenAI) -> None:
    """Each costs its own request alone: it is answered with 400, and those beside it with their tokens."""
    deep: Any = {"type": "integer"}
    for _ in range(45):
        deep = {"anyOf": [{"type": "object", "properties": {"a": deep}}, {"type": "null"}]}
    wide = {"enum": [f"{number:05}" for number in range(9000)]}
    loop = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    regex = {"type": "string", "pattern": "^(a?){200}(a{1,200}){200}$"}
    asking = openai.AsyncOpenAI(base_url=client.base_url, api_key="none", max_retries=0)

    async def plain() -> str:
        answer = await asking.completions.create(model="tiny-target", prompt="Say", seed=1, max_tokens=32)
        return answer.choices[0].text

    async def hostile(schema: Any) -> int:
        try:
            await asking.completions.create(
                model="tiny-target", prompt="Say", max_tokens=4, extra_body={"structured_outputs": {"json": schema}}
            )
        except openai.APIStatusError as error:
            return error.status_code
        return 200

    async def run() -> tuple[list[int], list[str]]:
        codes = asyncio.gather(*(hostile(schema) for schema in (deep, wide, loop, regex)))
        texts = await asyncio.gather(*(plain() for _ in range(4)))
        answered = list(await codes)
        await asking.close()
        return answered, list(texts)

    codes, texts = asyncio.run(run())
    assert set(codes) <= {200, 400}
    assert codes[1:3] == [200, 400]
    alone = client.completions.create(model="tiny-target", prompt="Say", seed=1, max_tokens=32).choices[0].text
    assert texts == [alone] * 4


def test_a_schema_that_never_ends_compiling_is_refused_by_name_and_stopped(
    tiny_cluster: Cluster, client: openai.OpenAI
) -> None:
    """By every way in, while others are served and others' schemas are compiled."""
    text = json.dumps(ENDLESS)
    alone = client.completions.create(model="tiny-target", prompt="Say", seed=1, max_tokens=64).choices[0].text
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": ENDLESS, "strict": True}}
    asking = openai.AsyncOpenAI(base_url=client.base_url, api_key="none", max_retries=0)

    def by_grpc() -> str:
        with Client(tiny_cluster.gateway_grpc) as grpc, pytest.raises(InvalidArgumentError) as caught:
            grpc.generate("Say", grammar=Grammar(json_schema=text, whitespace_pattern=""))
        return f"{caught.value.field}: {caught.value.message}"

    async def refused(**fields: Any) -> str:
        create = asking.chat.completions.create if "messages" in fields else asking.completions.create
        with pytest.raises(openai.BadRequestError) as caught:
            await create(model="tiny-target", max_tokens=4, **fields)
        return f"{caught.value.param}: {caught.value.body['message']}"  # type: ignore[index]

    async def served(number: int) -> str:
        options = {"structured_outputs": {"choice": [f"fresh {number}"]}}
        plain = await asking.completions.create(model="tiny-target", prompt="Say", seed=1, max_tokens=64)
        held = await asking.completions.create(model="tiny-target", prompt="Say", max_tokens=40, extra_body=options)
        assert held.choices[0].text == f"fresh {number}"
        return plain.choices[0].text

    async def run() -> tuple[list[str], list[str]]:
        refusals = asyncio.gather(
            refused(messages=ASK, response_format=form),
            refused(prompt="Say", extra_body={"structured_outputs": {"json": text}}),
            asyncio.to_thread(by_grpc),
        )
        texts = await asyncio.gather(*(served(number) for number in range(4)))
        found = list(await refusals)
        await asking.close()
        return found, list(texts)

    found, texts = asyncio.run(run())
    for field, refusal in zip(
        ("response_format.json_schema.schema", "structured_outputs.json", "sampling.grammar.json_schema"),
        found,
        strict=True,
    ):
        assert refusal == f"{field}: {field} takes longer to compile than the limit of 2 s"
    assert texts == [alone] * 4
