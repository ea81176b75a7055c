"""Fields that clients send and this server takes only where they change nothing, and how the others are refused.

Three rules, in this order, for a field that has no meaning here:

- null, or the value that stands for what the server does anyway, is taken.
- A field that could not change the answer, whatever its value, is taken and ignored.
- Everything else is refused by name, so that no answer is silently another than was asked for: as unsupported where
  other servers have the field, as unknown where nobody does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import core_schema

UNSUPPORTED_KIND: Final = "unsupported"
"""Type of the error of a field that is `Supported` and has another value."""


@dataclass(frozen=True, slots=True)
class Supported:
    """Marks a field of which only the annotated values are supported. All others make one error at the field itself.

    `words` follow the field's name in the error.
    """

    words: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """See pydantic."""
        return core_schema.custom_error_schema(
            handler(source), custom_error_type=UNSUPPORTED_KIND, custom_error_message=self.words
        )


def _no_number(value: Any) -> Any:
    """Python takes 1 for True and 0 for False, and JSON does not."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError("a number is no boolean")
    return value


_NOT_AT_ALL: Final = "is not supported by this server"
_REFUSED: Final = "Not supported: only null is accepted."

Ignored = Annotated[Any, Field(description="Accepted and without effect.")]

Unsupported = Annotated[None, Supported(_NOT_AT_ALL), Field(description=_REFUSED)]
"""A field of the OpenAI API, or of other servers, that this server refuses by name."""

OnlyTrue = Annotated[Literal[True] | None, BeforeValidator(_no_number), Supported("is supported as true only")]
OnlyFalse = Annotated[Literal[False] | None, BeforeValidator(_no_number), Supported("is supported as false only")]
OnlyZero = Annotated[Annotated[int, Field(ge=0, le=0)] | None, Supported("is supported as 0 only")]
OnlyMedium = Annotated[Literal["medium"] | None, Supported('is supported as "medium" only')]
NoText = Annotated[Literal[""] | None, Supported(_NOT_AT_ALL)]
NoEntries = Annotated[Annotated[list[Any], Field(max_length=0)] | None, Supported(f"{_NOT_AT_ALL}, unless empty")]
NoChoice = Annotated[
    Literal["none", "auto"] | None,
    Supported('is supported as "none" and "auto" only; tool_choice has taken its place'),
]
NoFunctions = Annotated[
    Annotated[list[Any], Field(max_length=0)] | None, Supported(f"{_NOT_AT_ALL}, unless empty; use tools")
]

UseJson = Annotated[None, Supported(f"{_NOT_AT_ALL}; use structured_outputs.json"), Field(description=_REFUSED)]
UseRegex = Annotated[None, Supported(f"{_NOT_AT_ALL}; use structured_outputs.regex"), Field(description=_REFUSED)]
UseChoice = Annotated[None, Supported(f"{_NOT_AT_ALL}; use structured_outputs.choice"), Field(description=_REFUSED)]
UseGrammar = Annotated[
    None, Supported(f"{_NOT_AT_ALL}; use structured_outputs.grammar, in Lark"), Field(description=_REFUSED)
]
UseWhitespace = Annotated[
    None, Supported(f"{_NOT_AT_ALL}; use structured_outputs.whitespace_pattern"), Field(description=_REFUSED)
]
"""Fields of other servers that go by another name here."""

BODY: Final = ConfigDict(strict=True, extra="allow", frozen=True, allow_inf_nan=False)
"""Of all request bodies and their parts. Whatever is not declared may only be null."""


class Body(BaseModel):
    """Base of all request bodies and their parts."""

    model_config = BODY
    __pydantic_extra__: dict[str, None]


class CommonFields(Body):
    """Fields without meaning here that both generation endpoints take."""

    metadata: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None
    request_id: Ignored = None
    safety_identifier: Ignored = None
    service_tier: Ignored = None

    # Of vLLM and SGLang, without effect on an answer that has no beam search and one grammar engine.
    early_stopping: Ignored = None
    guided_decoding_backend: Ignored = None
    length_penalty: Ignored = None
    spaces_between_special_tokens: Ignored = None

    allowed_token_ids: Unsupported = None
    bad_words: NoEntries = None
    cache_salt: Unsupported = None
    ebnf: UseGrammar = None
    guided_choice: UseChoice = None
    guided_grammar: UseGrammar = None
    guided_json: UseJson = None
    guided_regex: UseRegex = None
    guided_whitespace_pattern: UseWhitespace = None
    include_stop_str_in_output: OnlyFalse = None
    json_schema: UseJson = None
    kv_transfer_params: Unsupported = None
    logits_processors: NoEntries = None
    no_stop_trim: OnlyFalse = None
    priority: OnlyZero = None
    regex: UseRegex = None
    return_tokens_as_token_ids: OnlyFalse = None
    separate_reasoning: OnlyTrue = None
    skip_special_tokens: OnlyTrue = None
    stream_reasoning: OnlyTrue = None
    truncate_prompt_tokens: Unsupported = None
    use_beam_search: OnlyFalse = None


class TemplateFields(Body):
    """Fields about chat templates, all of which leave the prompt as the model's own template writes it."""

    chat_template: Unsupported = None
    continue_final_message: OnlyFalse = None
    documents: NoEntries = None
    media_io_kwargs: Ignored = None
    mm_processor_kwargs: Ignored = None


class ChatFields(CommonFields, TemplateFields):
    """Fields without meaning here that chat completions take."""

    prediction: Ignored = None

    add_generation_prompt: OnlyTrue = None
    add_special_tokens: OnlyFalse = None
    audio: Unsupported = None
    echo: OnlyFalse = None
    function_call: NoChoice = None
    functions: NoFunctions = None
    moderation: Unsupported = None
    store: OnlyFalse = None
    verbosity: OnlyMedium = None
    web_search_options: Unsupported = None


class CompletionFields(CommonFields):
    """Fields without meaning here that plain completions take."""

    add_special_tokens: OnlyTrue = None
    include_reasoning: Ignored = None
    suffix: NoText = None
