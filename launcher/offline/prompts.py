"""Prompts and conversations as callers write them: texts, token ids, mappings with either, and lists of these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Final, NotRequired, TypedDict

from slipstream.completion import Message

MAX_TOKEN_ID: Final = 2**32 - 1
_FORMS: Final = (
    "a prompt is a text, a list of token ids, {'prompt': TEXT} or {'prompt_token_ids': IDS}; prompts are a list of them"
)


class TextPrompt(TypedDict):
    """A text, to be tokenised."""

    prompt: str


class TokensPrompt(TypedDict):
    """Token ids; `prompt` is only repeated in the output."""

    prompt_token_ids: Sequence[int]
    prompt: NotRequired[str]


Prompt = str | Sequence[int] | TextPrompt | TokensPrompt


@dataclass(frozen=True, slots=True)
class PlainPrompt:
    """A prompt whatever its form was. `token_ids` is None where `text` has yet to be tokenised."""

    text: str | None
    token_ids: list[int] | None


def read_prompts(prompts: Prompt | Iterable[Prompt]) -> list[PlainPrompt]:
    """One prompt, or several. TypeError or ValueError names the place of what is no prompt."""
    if isinstance(prompts, str | Mapping):
        return [_read_prompt("prompts", prompts)]
    listed = _listed("prompts", prompts)
    if listed and all(_is_integer(each) for each in listed):
        return [_read_prompt("prompts", listed)]
    return [_read_prompt(f"prompts[{index}]", each) for index, each in enumerate(listed)]


def read_conversations(messages: Any) -> list[list[Message]]:
    """One conversation, or several. TypeError or ValueError names the place of what is no message."""
    if isinstance(messages, str | Mapping):
        raise TypeError(f"messages must be a list of messages or of such lists, got {type(messages).__name__}")
    listed = _listed("messages", messages)
    if not any(isinstance(each, Mapping) for each in listed):
        return [
            _read_messages(f"messages[{index}]", _listed(f"messages[{index}]", each))
            for index, each in enumerate(listed)
        ]
    return [_read_messages("messages", listed)]


def _read_prompt(place: str, prompt: Any) -> PlainPrompt:
    if isinstance(prompt, str):
        return PlainPrompt(prompt, None)
    if not isinstance(prompt, Mapping):
        return PlainPrompt(None, _read_ids(place, prompt))
    unknown = sorted(str(key) for key in prompt if key not in ("prompt", "prompt_token_ids"))
    if unknown:
        raise ValueError(f"{place}: {', '.join(unknown)}: not offered, only prompt and prompt_token_ids")
    text = prompt.get("prompt")
    if text is not None and not isinstance(text, str):
        raise TypeError(f"{place}: prompt must be a str, got {type(text).__name__}")
    ids = prompt.get("prompt_token_ids")
    if text is None and ids is None:
        raise ValueError(f"{place}: give prompt or prompt_token_ids")
    return PlainPrompt(text, None if ids is None else _read_ids(f"{place}: prompt_token_ids", ids))


def _read_ids(place: str, ids: Any) -> list[int]:
    listed = _listed(place, ids)
    for index, each in enumerate(listed):
        if not _is_integer(each):
            raise TypeError(f"{place}[{index}]: a token id must be an int, got {type(each).__name__}; {_FORMS}")
        if not 0 <= each <= MAX_TOKEN_ID:
            raise ValueError(f"{place}[{index}]: a token id must be from 0 to {MAX_TOKEN_ID}, got {each}")
    return [int(each) for each in listed]


def _read_messages(place: str, messages: list[Any]) -> list[Message]:
    return [_read_message(f"{place}[{index}]", message) for index, message in enumerate(messages)]


def _read_message(place: str, message: Any) -> Message:
    if not isinstance(message, Mapping):
        raise TypeError(f"{place}: a message must be a mapping with role and content, got {type(message).__name__}")
    unknown = sorted(str(key) for key in message if key not in ("role", "content"))
    if unknown:
        raise ValueError(f"{place}: {', '.join(unknown)}: not offered, only role and content")
    role = message.get("role")
    if not isinstance(role, str):
        raise TypeError(f"{place}: role must be a str, got {type(role).__name__}")
    return Message(role=role, content=_read_content(place, message.get("content")))


def _read_content(place: str, content: Any) -> str:
    """A text, or the texts of a list of parts, a line break between them as the HTTP API has it."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise TypeError(f"{place}: content must be a str or a list of text parts, got {type(content).__name__}")
    for index, part in enumerate(content):
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ValueError(f"{place}: content[{index}] must be {{'type': 'text', 'text': TEXT}}")
    return "\n".join(part["text"] for part in content)


def _listed(place: str, given: Any) -> list[Any]:
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise TypeError(f"{place}: {type(given).__name__} is no prompt and no list; {_FORMS}")
    return list(given)


def _is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
