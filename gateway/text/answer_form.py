"""How the answer to a chat is to be read: which parsers a model needs, and what a request says of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import Any, Final

from gateway.openai.schema import ChatCompletionRequest
from gateway.openai.tools import CustomTool, is_string, name_of, schema_of
from gateway.output_parsers.registry import (
    HARMONY,
    HARMONY_REASONING,
    MISTRAL,
    AnswerForm,
    Names,
    detected,
    reasoning_state,
)
from gateway.output_parsers.response_template import names_of_template
from gateway.text.body import UnsupportedFieldError
from gateway.text.grammars import Check, checked, wanted_grammar
from gateway.text.json_values import Values
from gateway.text.tool_grammar import either, tool_grammar
from gateway.tokens.tokenizer import Tokenizer
from slipstream.grammar.grammar import Grammar
from slipstream.grammar.tokenizer import GrammarTokenizer
from slipstream.json_file import read_object
from slipstream.rpc.errors import InvalidArgumentError

_log = logging.getLogger(__name__)

AUTO: Final = "auto"
NONE: Final = "none"


def parsers_of(folder: Path, template: str, tools: str, reasoning: str) -> Names:
    """The parsers of the model in a folder, whose chat template says this. FailedPreconditionError naming the file."""
    config = folder / "tokenizer_config.json"
    said = read_object(config).get("response_template") if config.is_file() else None
    return parser_names(template, tools, reasoning, said)


def parser_names(template: str, tools: str, reasoning: str, response_template: Any = None) -> Names:
    """The parsers of a model, under the settings of these names.

    Where they say AUTO, what the checkpoint says of its answers itself decides, else what the chat template shows.
    """
    said, found = names_of_template(response_template), detected(template)
    names = Names(
        _chosen(tools, said.tools or found.tools),
        _chosen(reasoning, said.reasoning or found.reasoning),
        tool_tags=said.tool_tags if tools == AUTO else None,
        reasoning_tags=said.reasoning_tags if reasoning == AUTO else None,
    )
    if names.tools == HARMONY or names.reasoning == HARMONY_REASONING:  # one format, hence one parser
        names = Names(HARMONY, HARMONY_REASONING)
    return names


def log_names(names: Names) -> None:
    """Say once in a process's life how answers are read, if they are."""
    if names != Names():
        _log.info(
            "answers to chats are read with tool_call_parser=%s reasoning_parser=%s",
            names.tools or NONE, names.reasoning or NONE,
        )  # fmt: skip


def _chosen(setting: str, found: str | None) -> str | None:
    return found if setting == AUTO else None if setting == NONE else setting


@dataclass(frozen=True, slots=True)
class Plan:
    """How an answer is to be read, None: all of it is content; and what it has to match, None: nothing.

    `field` is the one that asks for the grammar, and `checks` say whether it can be enforced.
    """

    form: AnswerForm | None
    grammar: Grammar | None = None
    field: str = ""
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True, slots=True)
class AnsweringModel:
    """What is known of the model that answers. `tokens` reads the tokenizer as grammars need it."""

    names: Names
    template: str
    tokenizer: Tokenizer
    tokens: Callable[[], GrammarTokenizer]


def answer_plan(body: ChatCompletionRequest, values: Values, prompt: str, model: AnsweringModel) -> Plan:
    """What becomes of the answer to a prompt that the model's template has written.

    InvalidArgumentError, naming the field, for tools whose calls could not be told from text.
    """
    policy, names = body.tool_policy, model.names
    tools = body.tools or []
    parser = names.tools if policy.allowed or names.tools == HARMONY else None
    if policy.allowed and not policy.required and parser is None:
        reason = (
            "tools: calls of this model cannot be told from text, as its chat template shows no form that is known; "
            "the server needs --tool-call-parser"
        )
        raise InvalidArgumentError(reason, field="tools")
    wanted = wanted_grammar(body, values)
    held = tool_grammar(tools, policy, values, replace(names, tools=parser))
    grammar, parser = held.grammar, held.parser
    checks = [] if held.check is None else [held.check]
    if wanted is not None and not policy.required:
        if policy.allowed:
            wanted = either(wanted, tools, policy, values, replace(names, tools=parser))
        grammar = wanted.grammar
        checks.append(partial(checked, wanted, None if policy.allowed else model.tokens))
    inside = reasoning_state(names, prompt)
    field = "" if grammar is None else "tools" if wanted is None or policy.required else wanted.field
    if grammar is not None:
        if names.tools == HARMONY:
            place = "tool_choice" if policy.required else field
            hint = '; it may be "auto" or "none"' if policy.required else ""
            raise UnsupportedFieldError(f"{place} is not supported for answers in channels{hint}", field=place)
        begins = _Reasoning.of(names, inside, model.template)
        grammar = replace(grammar, starts_after=_ends_of_reasoning(names, model.tokenizer, begins, field))
    if parser is None and names.reasoning is None:
        return Plan(None, grammar, field, tuple(checks))
    allowed = [tools[index] for index in policy.allowed]
    form = AnswerForm(
        names=replace(names, tools=parser),
        inside=inside,
        strings={name_of(tool): _strings(schema_of(tool)) for tool in allowed},
        custom=frozenset(name_of(tool) for tool in allowed if isinstance(tool, CustomTool)),
        include_reasoning=body.include_reasoning is not False,
        mistral_ids=names.tools == MISTRAL,
    )
    return Plan(form, grammar, field, tuple(checks))


class _Reasoning(Enum):
    """Whether an answer begins within reasoning."""

    NONE = auto()
    TRUSTED = auto()
    SURE = auto()

    @classmethod
    def of(cls, names: Names, inside: bool | None, template: str) -> _Reasoning:
        """A model that thinks unless its template is told otherwise opens its reasoning by itself, and is trusted to.

        Any other one need not reason, so that its answer is held to a grammar from the first token.
        """
        tags = names.around_reasoning
        if tags is None or inside is None:
            return cls.NONE
        if inside or tags.begins_inside:
            return cls.SURE
        return cls.TRUSTED if "enable_thinking" in template else cls.NONE


def _ends_of_reasoning(names: Names, tokenizer: Tokenizer, begins: _Reasoning, field: str) -> tuple[int, ...]:
    """The tokens behind which a grammar begins to hold; none where it holds from the first one."""
    tags = names.around_reasoning
    if tags is None or begins is _Reasoning.NONE:
        return ()
    token_id = tokenizer.special_id(tags.closing)
    if token_id is not None:
        return (token_id,)
    if begins is _Reasoning.TRUSTED:
        return ()
    reason = f"{field} cannot be enforced behind reasoning, as {tags.closing} is no token of its own"
    raise UnsupportedFieldError(reason, field=field)


def _strings(schema: Mapping[str, Any]) -> frozenset[str]:
    """The parameters of a schema that can be nothing but strings."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return frozenset()
    return frozenset(name for name, entry in properties.items() if is_string(entry))
