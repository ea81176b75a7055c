"""Messages of a conversation: what is taken, and how chat templates get them."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from gateway.core import limits
from gateway.openai.fields import BODY, Ignored, NoText, OnlyFalse, Supported, Unsupported

Reasoning = Annotated[str | None, Field(description="Given to the chat template as reasoning_content.")]
ToolName = Annotated[str, Field(pattern="^[a-zA-Z0-9_.:-]{1,128}$")]


class TextPart(TypedDict, extra_items=None):  # type: ignore[call-arg]  # PEP 728, which mypy does not know
    """A part of a message's content."""

    __pydantic_config__ = BODY  # type: ignore[misc]  # how pydantic configures a TypedDict

    type: Annotated[Literal["text"], Supported("is supported as 'text' only")]
    text: str
    annotations: NotRequired[Ignored]
    cache_control: NotRequired[Ignored]
    id: NotRequired[Ignored]
    index: NotRequired[Ignored]


class CalledFunction(TypedDict, extra_items=None):  # type: ignore[call-arg]  # as above
    """A function as an earlier answer has called it."""

    __pydantic_config__ = BODY  # type: ignore[misc]  # as above

    name: str
    arguments: Annotated[str, Field(description="JSON; chat templates get the object.")]
    parsed_arguments: NotRequired[Ignored]


class CalledCustomTool(TypedDict, extra_items=None):  # type: ignore[call-arg]  # as above
    """A custom tool as an earlier answer has called it."""

    __pydantic_config__ = BODY  # type: ignore[misc]  # as above

    name: str
    input: str


class FunctionCall(TypedDict, extra_items=None):  # type: ignore[call-arg]  # as above
    """A call in an earlier answer."""

    __pydantic_config__ = BODY  # type: ignore[misc]  # as above

    id: Annotated[str, Field(max_length=limits.MAX_NAME_BYTES)]
    type: Literal["function"]
    function: CalledFunction
    index: NotRequired[Ignored]
    provider_specific_fields: NotRequired[Ignored]


class CustomToolCall(TypedDict, extra_items=None):  # type: ignore[call-arg]  # as above
    """A call of a custom tool in an earlier answer."""

    __pydantic_config__ = BODY  # type: ignore[misc]  # as above

    id: Annotated[str, Field(max_length=limits.MAX_NAME_BYTES)]
    type: Literal["custom"]
    custom: CalledCustomTool
    index: NotRequired[Ignored]


ToolCall = Annotated[FunctionCall | CustomToolCall, Field(discriminator="type")]


class ChatMessage(TypedDict, extra_items=None):  # type: ignore[call-arg]  # as above
    """One turn of a conversation. A dictionary, as a body may have thousands of them."""

    __pydantic_config__ = BODY  # type: ignore[misc]  # as above

    role: Annotated[
        Literal["system", "developer", "user", "assistant", "tool"],
        Field(description="developer counts as system; tool is the result of a call."),
    ]
    content: NotRequired[
        Annotated[
            str | Annotated[list[TextPart], Field(fail_fast=True)] | None,
            Field(description="Parts are joined by line breaks."),
        ]
    ]
    name: NotRequired[str | None]
    reasoning_content: NotRequired[Reasoning]
    reasoning: NotRequired[Reasoning]
    tool_calls: NotRequired[Annotated[list[ToolCall], Field(fail_fast=True)] | None]
    tool_call_id: NotRequired[Annotated[str, Field(max_length=limits.MAX_NAME_BYTES)] | None]

    # What clients keep of an earlier answer and send back with it.
    annotations: NotRequired[Ignored]
    cache_control: NotRequired[Ignored]
    id: NotRequired[Ignored]
    parsed: NotRequired[Ignored]
    provider_specific_fields: NotRequired[Ignored]
    reasoning_details: NotRequired[Ignored]
    thinking_blocks: NotRequired[Ignored]

    audio: NotRequired[Unsupported]
    function_call: NotRequired[Unsupported]
    prefix: NotRequired[OnlyFalse]
    refusal: NotRequired[NoText]


def content_length(message: ChatMessage) -> int:
    """Characters of a message's content, reasoning and calls."""
    content = message.get("content") or ""
    length = len(content) if isinstance(content, str) else sum(len(part["text"]) for part in content)
    calls = sum(len(name) + len(arguments) for _, name, arguments in map(_called, message.get("tool_calls") or ()))
    return length + len(_reasoning(message)) + calls


def call_arguments(message: ChatMessage) -> list[str]:
    """The arguments of a message's calls, JSON that `for_template` decodes."""
    return [arguments for _, _, arguments in map(_called, message.get("tool_calls") or ())]


def for_template(message: ChatMessage) -> dict[str, Any]:
    """A message as chat templates take it: its content one string, arguments of its calls as objects."""
    content = message.get("content") or ""
    text = content if isinstance(content, str) else "\n".join(part["text"] for part in content)
    role = message["role"]
    written: dict[str, Any] = {"role": "system" if role == "developer" else role, "content": text}
    for key in ("name", "tool_call_id"):
        if (value := message.get(key)) is not None:
            written[key] = value
    if reasoning := _reasoning(message):
        written["reasoning_content"] = reasoning
    if calls := message.get("tool_calls"):
        written["tool_calls"] = [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": _object(arguments)}}
            for call_id, name, arguments in map(_called, calls)
        ]
    return written


def _called(call: FunctionCall | CustomToolCall) -> tuple[str, str, str]:
    """Id, name and arguments. Templates know functions alone: to them a custom tool is one with an input."""
    if call["type"] == "function":
        return call["id"], call["function"]["name"], call["function"]["arguments"]
    return call["id"], call["custom"]["name"], json.dumps({"input": call["custom"]["input"]}, ensure_ascii=False)


def _object(arguments: str) -> Any:
    """Arguments as an object; as they are where a model has written none."""
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def _reasoning(message: ChatMessage) -> str:
    """What the model thought before its answer, under the name that vLLM gives it or the older one."""
    return message.get("reasoning") or message.get("reasoning_content") or ""
