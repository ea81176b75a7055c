"""Prompts and conversations as files have them: JSON lines, also compressed, in the layouts common in public."""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, cast

SUFFIXES: Final = (".jsonl", ".jsonl.gz", ".jsonl.xz", ".ndjson", ".ndjson.gz", ".ndjson.xz")
"""What is read of a folder; a file that is named is read whatever its suffix."""

_ROLES: Final = {"user": "user", "human": "user", "system": "system", "assistant": "assistant", "gpt": "assistant"}
_CATEGORY_FIELDS: Final = ("category", "task", "set", "source")
_LIST_FIELDS: Final = ("messages", "conversations", "turns")
_PROMPT_FIELDS: Final = ("prompt", "question", "instruction")
_ANSWER_FIELDS: Final = ("response", "completion", "output", "answer")
_TEXT_FIELD: Final = "text"
ASSISTANT: Final = "assistant"
USER: Final = "user"
TEXT: Final = "text"
"""Role of the one turn of a plain text, which nobody has said to anybody."""


class RecordError(ValueError):
    """A line that holds no prompt. The message is one of few, so that they can be counted."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One message; `role` is "system" or "user", and in recordings also "assistant" or "text"."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """What users said in one conversation, and in recordings assistants too.

    `origin` is "file:line"; `category` groups results, or is empty.
    """

    turns: tuple[Turn, ...]
    origin: str
    category: str = ""

    @property
    def key(self) -> str:
        """Names the conversation by its content: 32 hexadecimal digits."""
        return conversation_key(self.turns)


def conversation_key(turns: Iterable[Turn]) -> str:
    """The first 128 bits of the SHA-256 of the turns."""
    written = json.dumps([[turn.role, turn.content] for turn in turns], ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(written.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def input_files(paths: Sequence[Path]) -> list[Path]:
    """The files named, and those of the folders named, sorted within each folder. ValueError where there is none."""
    files: list[Path] = []
    for path in paths:
        found = [path]
        if path.is_dir():
            found = sorted(each for each in path.rglob("*") if each.name.endswith(SUFFIXES) and each.is_file())
        if not found or not found[0].is_file():
            raise ValueError(f"{path}: no such file, or a folder without {', '.join(SUFFIXES)}")
        files += found
    return files


def read_lines(path: Path, skip: int = 0) -> Iterator[tuple[int, bytes]]:
    """Number (from 1) and bytes of each line after the first `skip` that is not blank."""
    with _open(path) as stream:
        for number, line in enumerate(stream, 1):
            if number > skip and line.strip():
                yield number, line


def _open(path: Path) -> IO[bytes]:
    if path.name.endswith(".gz"):
        return cast("IO[bytes]", gzip.open(path))
    return cast("IO[bytes]", lzma.open(path)) if path.name.endswith(".xz") else path.open("rb")


def said(turns: Iterable[Turn]) -> str:
    """What users say, or the plain text: that by which prompts are compared and kept apart."""
    return "\n".join(turn.content for turn in turns if turn.role in ("user", TEXT))


def read_prompt(line: bytes, origin: str, field: str | None = None) -> Prompt:
    """The prompt on a line. What assistants once said is left out: the target answers anew.

    `field` names the one that holds the text or the messages. Without it: messages, conversations (also with "from"
    and "value"), turns, or prompt, question, instruction (with input) or text. RecordError says what is wrong.
    """
    record = _object(line)
    turns = _merged(_system(record) + _turns(record, field))
    if not any(turn.role == "user" for turn in turns):
        raise RecordError("no user's message")
    return Prompt(turns, origin, _category(record))


def read_questions(line: bytes, origin: str) -> list[Prompt]:
    """The prompt on a line, and the first by itself of texts that are read as one. RecordError as in `read_prompt`."""
    prompt = read_prompt(line, origin)
    _, value = _found(_object(line), None)
    first = value[0] if isinstance(value, list) and len(value) > 1 else None
    if not isinstance(first, str) or not first.strip():
        return [prompt]
    return [prompt, Prompt((Turn(USER, first.strip()),), origin, prompt.category)]


def read_recording(line: bytes, origin: str, field: str | None = None) -> Prompt:
    """The conversation on a line up to the last thing that an assistant said in it, or a plain text.

    Read as `read_prompt` does; a prompt's answer may stand in response, completion, output or answer. A plain text is
    what `field` names or, where there is nothing else, text. It ends before an empty answer, as what follows replies
    to something that is not there.
    """
    record = _object(line)
    name, value = _found(record, field)
    if isinstance(value, str) and name not in _PROMPT_FIELDS:
        if not value.strip():
            raise RecordError("an empty text")
        return Prompt((Turn(TEXT, value),), origin, _category(record))
    turns = _answered(_system(record) + _turns(record, field) + _answer(record, name))
    if not turns:
        raise RecordError("no assistant's message that answers a user's")
    return Prompt(turns, origin, _category(record))


def _object(line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise RecordError("not JSON") from error
    if not isinstance(record, dict):
        raise RecordError("not a JSON object")
    return record


def _category(record: dict[str, Any]) -> str:
    return next((str(record[name]) for name in _CATEGORY_FIELDS if record.get(name)), "")


def _system(record: dict[str, Any]) -> list[Turn]:
    text = record.get("system")
    return [Turn("system", text)] if isinstance(text, str) and text.strip() else []


def _found(record: dict[str, Any], field: str | None) -> tuple[str, Any]:
    """The field that holds the text or messages, and what it holds."""
    if field is not None:
        if field not in record:
            raise RecordError(f"no field {field!r}")
        return field, record[field]
    for name in _LIST_FIELDS:
        if isinstance(record.get(name), list):
            return name, record[name]
    for name in (*_PROMPT_FIELDS, _TEXT_FIELD):
        if record.get(name):
            return name, record[name]
    raise RecordError("no prompt in it")


def _turns(record: dict[str, Any], field: str | None) -> list[Turn]:
    name, value = _found(record, field)
    extra = record.get("input") if field is None and name == "instruction" else None
    return _value(f"{value}\n\n{extra}" if isinstance(extra, str) and extra.strip() else value)


def _answer(record: dict[str, Any], name: str) -> list[Turn]:
    """What stands beside a prompt as its answer."""
    beside = (record.get(each) for each in _ANSWER_FIELDS) if name in _PROMPT_FIELDS else ()
    return [Turn(ASSISTANT, text) for text in beside if isinstance(text, str)][:1]


def _value(value: Any) -> list[Turn]:
    if isinstance(value, str):
        return [Turn("user", value)]
    if not isinstance(value, list):
        raise RecordError("neither text nor messages")
    turns: list[Turn] = []
    for entry in value:
        turn = Turn("user", entry) if isinstance(entry, str) else _message(entry)
        if turn is None:
            break
        turns.append(turn)
    return turns


def _message(entry: Any) -> Turn | None:
    """One message; None for what a chat of texts cannot hold (tools, images), where the conversation is cut."""
    if not isinstance(entry, dict):
        raise RecordError("a message that is no object")
    role = _ROLES.get(str(entry.get("role", entry.get("from"))))
    content = entry.get("content", entry.get("value"))
    if isinstance(content, list):
        if any(not isinstance(part, dict) or part.get("type") != "text" for part in content):
            return None
        content = "".join(str(part.get("text", "")) for part in content)
    if role is None or entry.get("tool_calls") or not isinstance(content, str):
        return None
    return Turn(role, content)


def _merged(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """Without empty turns and assistants' words; messages that follow one another directly are one."""
    merged: list[Turn] = []
    previous = ""
    for turn in turns:
        content = turn.content.strip()
        if turn.role != "assistant" and content:
            if turn.role == previous:
                merged[-1] = Turn(turn.role, f"{merged[-1].content}\n\n{content}")
            else:
                merged.append(Turn(turn.role, content))
        if content or turn.role == "assistant":
            previous = turn.role
    return tuple(merged)


def _answered(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """Without empty turns, from the beginning to the last answer; nothing where no user says anything."""
    joined: list[Turn] = []
    for turn in turns:
        content = turn.content.strip()
        if not content and turn.role == ASSISTANT:
            break
        if content and joined and joined[-1].role == turn.role:
            joined[-1] = Turn(turn.role, f"{joined[-1].content}\n\n{content}")
        elif content:
            joined.append(Turn(turn.role, content))
    while joined and joined[-1].role != ASSISTANT:
        joined.pop()
    return tuple(joined) if any(turn.role == "user" for turn in joined) else ()
