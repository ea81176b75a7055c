"""The model's own chat template, rendered in a sandbox as Hugging Face's tokenizers render it. Needs jinja2.

Whoever writes prompts, to serve them or to train on them, writes them here, so that they are the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from slipstream.rpc.errors import InvalidArgumentError

Message = Mapping[str, str]
"""One turn of a conversation: "role", "content" and perhaps "name"."""


class ChatTemplate:
    """Writes a conversation as the prompt the model was trained on."""

    __slots__ = ("_special_tokens", "_template")

    def __init__(self, source: str | None, special_tokens: Mapping[str, str]) -> None:
        self._template: Template | None = None if source is None else _environment().from_string(source)
        self._special_tokens = dict(special_tokens)

    @classmethod
    def from_folder(cls, folder: Path) -> ChatTemplate:
        """Read chat_template.jinja or, failing that, tokenizer_config.json. A folder may have no template at all."""
        config = _read_json(folder / "tokenizer_config.json")
        file = folder / "chat_template.jinja"
        source = file.read_text("utf-8") if file.is_file() else _named_default(config.get("chat_template"))
        tokens = {name: _token_text(value) for name, value in config.items() if name.endswith("_token")}
        return cls(source, {name: text for name, text in tokens.items() if text is not None})

    def render(
        self, messages: Sequence[Message], *, field: str = "messages", add_generation_prompt: bool = True
    ) -> str:
        """The prompt that ends where the assistant's turn begins, or where the last message ends.

        InvalidArgumentError, naming `field`, if the template refuses or there is none.
        """
        if self._template is None:
            raise InvalidArgumentError("the model has no chat template; use a plain prompt", field=field)
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=add_generation_prompt, **self._special_tokens
            )
        except TemplateError as error:
            raise InvalidArgumentError(f"the chat template refuses the messages: {error}", field=field) from error
        except (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError, RecursionError) as error:
            reason = f"the chat template fails on the messages: {type(error).__name__}: {error}"
            raise InvalidArgumentError(reason, field=field) from error


class _Generation(Extension):
    """Passes through {% generation %} blocks, by which templates mark the assistant's words for training."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it as an instance attribute, so ClassVar does not fit

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The nodes inside the block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


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


def _read_json(file: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    return loaded


def _named_default(template: Any) -> str | None:
    """The template itself, or the one named "default" of several."""
    if isinstance(template, list):
        return next((entry["template"] for entry in template if entry["name"] == "default"), None)
    return None if template is None else str(template)


def _token_text(value: Any) -> str | None:
    """A special token is written as a string or as an object with its content."""
    return value.get("content") if isinstance(value, dict) else value
