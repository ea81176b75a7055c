"""The model's own chat template, rendered in a sandbox as Hugging Face's tokenizers render it. Needs jinja2.

Whoever writes prompts, to serve them or to train on them, writes them here, so that they are the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NoReturn

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from slipstream.json_file import read_bounded, read_object
from slipstream.model_folder import TEMPLATE_FILE
from slipstream.rpc.errors import FailedPreconditionError, InvalidArgumentError

_MOST_ERROR_CHARACTERS: Final = 500

Message = Mapping[str, Any]
"""One turn of a conversation: "role", "content" and perhaps "name", "reasoning_content", "tool_calls" or
"tool_call_id"."""

Tool = Mapping[str, Any]
"""A tool, in the form of the OpenAI API."""

RESERVED: Final = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
"""Variables of templates that no caller sets."""


_NO_TEMPLATE: Final = (
    "the model has no chat template; use a plain prompt (/v1/completions), or have the server started with "
    "--chat-template FILE"
)

_LONGEST_TEMPLATE = 1 << 20
"""Characters of a template; public ones have some thousands."""


class ChatTemplate:
    """Writes a conversation as the prompt the model was trained on."""

    __slots__ = ("_special_tokens", "_template", "source")

    def __init__(self, source: str | None, special_tokens: Mapping[str, str]) -> None:
        self.source = source or ""
        self._template: Template | None = None if source is None else _compiled(source)
        self._special_tokens = dict(special_tokens)

    @classmethod
    def from_folder(cls, folder: Path, file: Path | None = None) -> ChatTemplate:
        """Read and compile the template that `read_template` finds. FailedPreconditionError, which names the file."""
        source, special_tokens = read_template(folder, file)
        try:
            return cls(source, special_tokens)
        except InvalidArgumentError as error:
            raise FailedPreconditionError(f"{_place(folder, file)}: {error.message}") from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        field: str = "messages",
        add_generation_prompt: bool = True,
        tools: Sequence[Tool] = (),
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt that ends where the assistant's turn begins, or where the last message ends.

        `variables` are the caller's own, without RESERVED ones. InvalidArgumentError, naming `field`, if the template
        refuses or fails, or there is none.
        """
        return "".join(
            self.pieces(
                messages, field=field, add_generation_prompt=add_generation_prompt, tools=tools, variables=variables
            )
        )

    def pieces(
        self,
        messages: Sequence[Message],
        *,
        field: str,
        add_generation_prompt: bool = True,
        tools: Sequence[Tool] = (),
        variables: Mapping[str, Any] | None = None,
    ) -> Iterator[str]:
        """The prompt in pieces as the template writes them, so that a reader can stop. Errors are those of `render`."""
        if self._template is None:
            raise InvalidArgumentError(_NO_TEMPLATE, field=field)
        context = {**self._special_tokens, **(variables or {}), "messages": messages, "tools": tools or None}
        context |= {"documents": None, "add_generation_prompt": add_generation_prompt}
        try:
            yield from self._template.generate(context)
        except TemplateError as error:
            raise InvalidArgumentError(
                f"the chat template refuses the messages: {_short(error)}", field=field
            ) from error
        except Exception as error:  # a template is code from elsewhere, and may raise whatever its operators can
            reason = f"the chat template fails on the messages: {type(error).__name__}: {_short(error)}"
            raise InvalidArgumentError(reason, field=field) from error


def read_template(folder: Path, file: Path | None = None) -> tuple[str | None, dict[str, str]]:
    """Read `file`, else chat_template.jinja or, failing that, tokenizer_config.json, which names special tokens.

    The text, None where the folder has no template at all, and those tokens by their names. FailedPreconditionError,
    which names the file, where one is not what it should be.
    """
    path, found = folder / "tokenizer_config.json", _place(folder, file)
    config = read_object(path) if path.exists() else {}
    source = _named_default(config.get("chat_template"), path) if found == path else _read_text(found)
    if source is not None and len(source) > _LONGEST_TEMPLATE:
        raise FailedPreconditionError(
            f"{found}: the chat template has {len(source)} characters, the limit is {_LONGEST_TEMPLATE}"
        )
    tokens = {name: _token_text(value) for name, value in config.items() if name.endswith("_token")}
    return source, {name: text for name, text in tokens.items() if text is not None}


def _place(folder: Path, file: Path | None) -> Path:
    """The file that a folder's template stands in."""
    own = folder / TEMPLATE_FILE
    if file is not None:
        return file
    return own if own.exists() else folder / "tokenizer_config.json"


class _Generation(Extension):
    """Passes through {% generation %} blocks, by which templates mark the assistant's words for training."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it as an instance attribute, so ClassVar does not fit

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The nodes inside the block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def parsed(source: str) -> nodes.Template:
    """The nodes of a template's text, which nothing has computed yet. TemplateError if it is malformed."""
    return _environment().parse(source)


def _compiled(source: str) -> Template:
    """Compile a template. Constant expressions are computed here, so that even this may fail or take for ever."""
    try:
        return _environment().from_string(source)
    except TemplateError as error:
        raise InvalidArgumentError(f"the chat template does not compile: {_short(error)}") from error
    except Exception as error:
        reason = f"the chat template does not compile: {type(error).__name__}: {_short(error)}"
        raise InvalidArgumentError(reason) from error


def _short(error: Exception) -> str:
    """What the error says, cut: a template can put whatever it likes into it."""
    text = " ".join(str(error)[:_MOST_ERROR_CHARACTERS].split())
    return f"{text} (line {error.lineno})" if isinstance(error, TemplateSyntaxError) else text


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _to_json
    functions: dict[str, Callable[..., Any]] = {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    environment.globals.update(functions)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)


def _read_text(file: Path) -> str:
    try:
        return read_bounded(file, 4 * _LONGEST_TEMPLATE).decode("utf-8")
    except ValueError as error:
        raise FailedPreconditionError(f"{file}: {error}") from error


def _named_default(template: Any, path: Path) -> str | None:
    """The template itself, or the one named "default" of several."""
    if isinstance(template, list):
        named = [entry for entry in template if isinstance(entry, dict) and entry.get("name") == "default"]
        template = named[0].get("template") if named else None
    if not (template is None or isinstance(template, str)):
        raise FailedPreconditionError(f"{path}: chat_template is of type {type(template).__name__}, must be a string")
    return template


def _token_text(value: Any) -> str | None:
    """A special token is written as a string or as an object with its content; what is neither is left out."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None
