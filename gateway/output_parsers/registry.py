"""Output parsers by name, as vLLM names them, and which ones a model's chat template asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from gateway.output_parsers import bare_json, harmony, mistral, pythonic, tagged_json, xml_calls
from gateway.output_parsers.base import OutputParser, PlainParser
from gateway.output_parsers.reasoning import ReasoningParser

ToolParserName = Literal["hermes", "qwen3_coder", "llama3_json", "pythonic", "mistral", "openai"]
ReasoningParserName = Literal["qwen3", "deepseek_r1", "mistral", "openai_gptoss"]

HARMONY: Final[ToolParserName] = "openai"
MISTRAL: Final[ToolParserName] = "mistral"
HARMONY_REASONING: Final[ReasoningParserName] = "openai_gptoss"

FORCED: Final = "json"
"""Calls as a bare list of JSON objects, to which a grammar holds models whose own form it cannot be held to."""


@dataclass(frozen=True, slots=True)
class Tags:
    """What opens and closes reasoning, or a call. `begins_inside`: the model leaves the first one out."""

    opening: str
    closing: str
    begins_inside: bool = False


@dataclass(frozen=True, slots=True)
class Names:
    """Parsers of a model's answers; None: its answers have no calls, or no reasoning, that could be told from text.

    Tags stand in place of those that go with a name, which are None.
    """

    tools: str | None = None
    reasoning: str | None = None
    tool_tags: Tags | None = None
    reasoning_tags: Tags | None = None

    @property
    def around_reasoning(self) -> Tags | None:
        """What stands around reasoning; None where there is none, or it is told by other means."""
        return self.reasoning_tags or REASONING_TAGS.get(self.reasoning or "")

    @property
    def around_calls(self) -> Tags:
        """What stands around calls in JSON."""
        return self.tool_tags or Tags(tagged_json.OPEN, tagged_json.CLOSE)


REASONING_TAGS: Final[Mapping[str, Tags]] = {
    "qwen3": Tags("<think>", "</think>"),
    "deepseek_r1": Tags("<think>", "</think>", begins_inside=True),
    "mistral": Tags("[THINK]", "[/THINK]"),
}


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """How one answer is to be read.

    `inside` says whether the prompt ends within reasoning, None that it has closed it. `strings` names the parameters
    that are strings, by tool; its keys are the tools. Calls of tools in `custom` have an input in place of arguments.
    `mistral_ids`: calls have ids that the chat templates of Mistral's models take, in whatever form they are written.
    """

    names: Names
    inside: bool | None = False
    strings: Mapping[str, frozenset[str]] = field(default_factory=dict)
    custom: frozenset[str] = frozenset()
    include_reasoning: bool = True
    mistral_ids: bool = False


_TOOL_PARSERS: Final[Mapping[str, Callable[[AnswerForm], OutputParser]]] = {
    "hermes": lambda form: tagged_json.TaggedJsonParser(
        form.names.around_calls.opening, form.names.around_calls.closing
    ),
    "qwen3_coder": lambda form: xml_calls.XmlCallParser(form.strings),
    "llama3_json": lambda form: bare_json.BareJsonParser(form.strings),
    "pythonic": lambda form: pythonic.PythonicParser(form.strings),
    "mistral": lambda form: mistral.MistralParser(),
    "openai": lambda form: harmony.HarmonyParser(),
    FORCED: lambda form: bare_json.BareJsonParser(form.strings),
}
_MARKERS: Final[Mapping[str, tuple[str, ...]]] = {
    "qwen3_coder": (xml_calls.TAG, "</tool_call>"),
    "llama3_json": (bare_json.PYTHON_TAG,),
    "pythonic": (pythonic.START, pythonic.END),
    "mistral": (mistral.MARKER, mistral.CALL_ID, mistral.ARGUMENTS),
    "openai": harmony.MARKERS,
}


def new_parser(form: AnswerForm) -> OutputParser:
    """A parser for one answer."""
    make = _TOOL_PARSERS.get(form.names.tools or "")
    answer = PlainParser() if make is None else make(form)
    tags = form.names.around_reasoning
    if tags is None or form.inside is None:
        return answer
    return ReasoningParser(answer, tags.opening, tags.closing, inside=form.inside or tags.begins_inside)


def markers(names: Names) -> tuple[str, ...]:
    """What tells parts of an answer from one another. A special token among these has to be part of the text."""
    calls, tags = names.around_calls, names.around_reasoning
    of_calls = (calls.opening, calls.closing) if names.tools == "hermes" else _MARKERS.get(names.tools or "", ())
    return of_calls + ((tags.opening, tags.closing) if tags is not None else ())


def reasoning_state(names: Names, prompt: str) -> bool | None:
    """Whether a prompt ends within the model's reasoning; None where it ends behind it."""
    tags = names.around_reasoning
    if tags is None:
        return False
    end = prompt.rstrip()
    if end.endswith(tags.closing):
        return None
    return end.endswith(tags.opening)


_SIGNS: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    ((harmony.CHANNEL, harmony.START), "openai"),
    ((mistral.MARKER,), "mistral"),
    (("<function=", "<parameter="), "qwen3_coder"),
    ((tagged_json.OPEN,), "hermes"),
    ((pythonic.START,), "pythonic"),
    (("[func_name1(",), "pythonic"),
    ((bare_json.PYTHON_TAG,), "llama3_json"),
    (('"parameters": dictionary',), "llama3_json"),
)
_REASONING_SIGNS: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    ((harmony.CHANNEL, harmony.START), "openai_gptoss"),
    (("</think>",), "qwen3"),
    (("[/THINK]",), "mistral"),
)


def detected(template: str) -> Names:
    """The parsers that the text of a chat template asks for: it shows the form in which it writes earlier answers."""
    return Names(_first(_SIGNS, template), _first(_REASONING_SIGNS, template))


def _first(signs: tuple[tuple[tuple[str, ...], str], ...], template: str) -> str | None:
    return next((name for needed, name in signs if all(sign in template for sign in needed)), None)
