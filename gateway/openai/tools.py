"""Tools of a request and its choice among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from gateway.openai.fields import Body, Ignored
from gateway.openai.messages import ToolName

MOST_TOOLS: Final = 128
MOST_LETTERS: Final = 1 << 15
"""Of a custom tool's grammar."""

JsonSchema = Annotated[dict[str, Any], Field(description="A JSON Schema.")]


def _of_an_object(schema: dict[str, Any]) -> dict[str, Any]:
    kind = schema.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise PydanticCustomError("parameters", 'must be a JSON Schema of an object, its type is not "object"')
    return schema


Parameters = Annotated[JsonSchema, AfterValidator(_of_an_object)]


class FunctionDefinition(Body):
    """A function that the model may call."""

    name: ToolName
    description: str | None = None
    parameters: Parameters | None = Field(None, description="Default: the function takes none.")
    strict: bool | None = Field(None, description="Hold calls to the parameters' schema, also where none is forced.")


class FunctionTool(Body):
    """A tool that takes JSON."""

    type: Literal["function"]
    function: FunctionDefinition
    cache_control: Ignored = None


class TextInput(Body):
    """Any text."""

    type: Literal["text"]


class GrammarDefinition(Body):
    """What a custom tool's input matches."""

    syntax: Literal["lark", "regex"]
    definition: str = Field(
        description="In llguidance's dialect of Lark, or a regular expression.", max_length=MOST_LETTERS
    )


class GrammarInput(Body):
    """A text that matches a grammar."""

    type: Literal["grammar"]
    grammar: GrammarDefinition


class CustomDefinition(Body):
    """A tool that takes a text."""

    name: ToolName
    description: str | None = None
    format: Annotated[TextInput | GrammarInput, Field(discriminator="type")] | None = None


class CustomTool(Body):
    """A tool that takes a text. The model knows it as a function with one parameter, `input`."""

    type: Literal["custom"]
    custom: CustomDefinition


Tool = Annotated[FunctionTool | CustomTool, Field(discriminator="type")]
Tools = Annotated[list[Tool], Field(max_length=MOST_TOOLS, fail_fast=True)]


class ToolReference(Body):
    """A tool by its name."""

    name: ToolName


class NamedFunction(Body):
    """The function to call."""

    type: Literal["function"]
    function: ToolReference


class NamedCustomTool(Body):
    """The custom tool to call."""

    type: Literal["custom"]
    custom: ToolReference


class AllowedSet(Body):
    """The tools that may be called, and whether one must be."""

    mode: Literal["auto", "required"]
    tools: Annotated[
        list[Annotated[NamedFunction | NamedCustomTool, Field(discriminator="type")]],
        Field(min_length=1, max_length=MOST_TOOLS, fail_fast=True),
    ]


class AllowedTools(Body):
    """A choice among some of the tools. The prompt has all of them."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedSet


ToolChoice = (
    Literal["none", "auto", "required"]
    | Annotated[NamedFunction | NamedCustomTool | AllowedTools, Field(discriminator="type")]
)


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """What calls an answer may have. `allowed` are indices of the request's tools; empty: it may have none.

    `shown` are those of the tools that the prompt has. `required`: at least one call. `parallel`: several.
    `limited`: not all of the tools, or a single call.
    """

    shown: tuple[int, ...] = ()
    allowed: tuple[int, ...] = ()
    required: bool = False
    parallel: bool = True
    limited: bool = False


def name_of(tool: FunctionTool | CustomTool) -> str:
    """A tool's name."""
    return tool.function.name if isinstance(tool, FunctionTool) else tool.custom.name


def schema_of(tool: FunctionTool | CustomTool) -> dict[str, Any]:
    """The JSON Schema of what a tool is called with. It says no more than in words what a text of Lark has to match."""
    if isinstance(tool, FunctionTool):
        return tool.function.parameters or {"type": "object", "properties": {}}
    text: dict[str, Any] = {"type": "string"}
    grammar = grammar_of(tool)
    if grammar is not None and grammar.syntax == "regex":
        text["pattern"] = f"^(?:{grammar.definition})$"
    elif grammar is not None:
        text["description"] = f"A text of this grammar in Lark:\n{grammar.definition}"
    return {"type": "object", "properties": {"input": text}, "required": ["input"], "additionalProperties": False}


def held_schema_of(tool: FunctionTool | CustomTool) -> dict[str, Any]:
    """The schema that calls are held to: of a function that says nothing of parameters, that there are none."""
    if isinstance(tool, FunctionTool) and tool.function.parameters is None:
        return schema_of(tool) | {"additionalProperties": False}
    return schema_of(tool)


def grammar_of(tool: FunctionTool | CustomTool) -> GrammarDefinition | None:
    """What a custom tool's input matches, if anything."""
    if isinstance(tool, CustomTool) and isinstance(tool.custom.format, GrammarInput):
        return tool.custom.format.grammar
    return None


def is_string(schema: Any) -> bool:
    """Whether a parameter of this schema can be nothing but a string, so that forms without quotes write it bare."""
    if not isinstance(schema, Mapping):
        return False
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if schema.get("type") in ("string", ["string"]):
        return True
    return "type" not in schema and isinstance(values, list) and all(isinstance(value, str) for value in values)


def is_strict(tool: FunctionTool | CustomTool) -> bool:
    """Whether its calls are held to its schema wherever there is one."""
    if isinstance(tool, FunctionTool):
        return bool(tool.function.strict)
    return grammar_of(tool) is not None


def tool_for_template(tool: FunctionTool | CustomTool) -> dict[str, Any]:
    """A tool as chat templates take it: as a function."""
    described = tool.function if isinstance(tool, FunctionTool) else tool.custom
    function: dict[str, Any] = {"name": described.name}
    if described.description is not None:
        function["description"] = described.description
    return {"type": "function", "function": function | {"parameters": schema_of(tool)}}


def tool_policy(tools: Sequence[FunctionTool | CustomTool], choice: ToolChoice | None, *, parallel: bool) -> ToolPolicy:
    """What `tool_choice` and `parallel_tool_calls` make of these tools, which `check_tools` has seen."""
    if not tools or choice == "none":
        return ToolPolicy()
    every = tuple(range(len(tools)))
    if choice is None or isinstance(choice, str):
        return ToolPolicy(every, every, choice == "required", parallel, limited=not parallel)
    places = {name_of(tool): index for index, tool in enumerate(tools)}
    if isinstance(choice, AllowedTools):
        listed = tuple(sorted({places[_referred(entry)] for entry in choice.allowed_tools.tools}))
        limited = listed != every or not parallel
        return ToolPolicy(every, listed, choice.allowed_tools.mode == "required", parallel, limited)
    return ToolPolicy(every, (places[_referred(choice)],), required=True, parallel=False, limited=True)


def check_tools(tools: Sequence[FunctionTool | CustomTool], choice: ToolChoice | None) -> None:
    """PydanticCustomError, whose type is the field's name, for tools of one name and choices of none."""
    names = [name_of(tool) for tool in tools]
    twice = next((name for index, name in enumerate(names) if name in names[:index]), None)
    if twice is not None:
        raise PydanticCustomError("tools", "tools: {name} is declared twice", {"name": twice})
    if not names and choice not in (None, "none", "auto"):
        raise PydanticCustomError("tool_choice", 'tool_choice is supported as "none" and "auto" only without tools')
    if choice is None or isinstance(choice, str):
        return
    chosen = choice.allowed_tools.tools if isinstance(choice, AllowedTools) else [choice]
    kinds = {name_of(tool): tool.type for tool in tools}
    for entry in chosen:
        if kinds.get(_referred(entry)) != entry.type:
            raise PydanticCustomError(
                "tool_choice", "tool_choice: {name} is no tool of this type in tools", {"name": _referred(entry)}
            )


def _referred(entry: NamedFunction | NamedCustomTool) -> str:
    return entry.function.name if isinstance(entry, NamedFunction) else entry.custom.name
