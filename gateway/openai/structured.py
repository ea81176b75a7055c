"""What a request wants its answer to match: response_format, and structured_outputs as vLLM has it."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from gateway.openai.fields import Body, Ignored, OnlyFalse

MAX_CHOICES: Final = 10_000
Text = Annotated[str, Field(min_length=1)]


class TextFormat(Body):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(Body):
    """Any JSON object."""

    type: Literal["json_object"]


class NamedSchema(Body):
    """A JSON Schema under a name."""

    model_config = ConfigDict(validate_by_name=False, validate_by_alias=True)

    name: Annotated[str, Field(pattern="^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema", description="Default: any object.")
    strict: bool | None = Field(None, description="The answer is held to the schema whatever this says.")


class JsonSchemaFormat(Body):
    """JSON that fits a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


class TagStructure(Body):
    """A tag: begin, JSON that fits the schema, end."""

    model_config = ConfigDict(validate_by_name=False, validate_by_alias=True)

    begin: Text
    schema_: dict[str, Any] | None = Field(None, alias="schema", description="Default: any object.")
    end: str


class StructuralTagFormat(Body):
    """Free text up to a trigger, then one of the tags that begin with it, again and again."""

    type: Literal["structural_tag"]
    structures: Annotated[list[TagStructure], Field(min_length=1, max_length=256, fail_fast=True)]
    triggers: Annotated[list[Text], Field(min_length=1, max_length=256, fail_fast=True)]


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat | StructuralTagFormat, Field(discriminator="type")
]

_KINDS: Final = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


class StructuredOutputs(Body):
    """One of json, regex, choice, grammar, json_object and structural_tag, and how JSON is written."""

    model_config = ConfigDict(validate_by_name=False, validate_by_alias=True)

    json_: Text | dict[str, Any] | None = Field(None, alias="json", description="A JSON Schema, or its text.")
    regex: Text | None = Field(None, description="Matches the whole answer. No look-around, no back references.")
    choice: Annotated[list[Text], Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True)] | None = None
    grammar: Text | None = Field(None, description="In llguidance's dialect of Lark.")
    json_object: Literal[True] | None = None
    structural_tag: StructuralTagFormat | None = None
    disable_any_whitespace: bool | None = Field(None, description="True: no white space between JSON tokens.")
    whitespace_pattern: Annotated[str, Field(min_length=1, max_length=256)] | None = Field(
        None,
        description="A regular expression for white space between JSON tokens, in place of the server's bounded one.",
    )
    disable_additional_properties: OnlyFalse = None
    disable_fallback: Ignored = None

    @model_validator(mode="after")
    def _exactly_one(self) -> StructuredOutputs:
        given = [name for name in _KINDS if getattr(self, "json_" if name == "json" else name) is not None]
        if len(given) != 1:
            raise PydanticCustomError(
                "structured_outputs",
                "must have exactly one of {names}",
                {"names": ", ".join(_KINDS)},
            )
        if self.disable_any_whitespace and self.whitespace_pattern is not None:
            raise PydanticCustomError(
                "structured_outputs",
                "disable_any_whitespace and whitespace_pattern exclude each other",
            )
        return self
