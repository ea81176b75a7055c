"""Prompts as files have them: JSON lines, plain or gzipped, in the layouts that are common in public."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

SUFFIXES: Final = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz")
"""What is read of a folder; a file that is named is read whatever its suffix."""

_ROLES: Final = {"user": "user", "human": "user", "system": "system", "assistant": "assistant", "gpt": "assistant"}
_CATEGORY_FIELDS: Final = ("category", "task", "set", "source")
_TEXT_FIELDS: Final = ("prompt", "question", "instruction", "text")


class RecordError(ValueError):
    """A line that holds no prompt. The message is one of few, so that they can be counted."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One message; `role` is "system" or "user". What assistants once said is left out: the target answers anew."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """What users said in one conversation. `origin` is "file:line"; `category` groups results, or is empty."""

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
    with gzip.open(path) if path.name.endswith(".gz") else path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if number > skip and line.strip():
                yield number, line


def read_prompt(line: bytes, origin: str, field: str | None = None) -> Prompt:
    """The prompt on a line.

    `field` names the one that holds the text or the messages. Without it: messages, conversations (also with "from"
    and "value"), turns, or prompt, question, instruction (with input) or text. RecordError says what is wrong.
    """
    try:
        record = json.loads(line)
    except ValueError as error:
        raise RecordError("not JSON") from error
    if not isinstance(record, dict):
        raise RecordError("not a JSON object")
    turns = _merged(_system(record) + _turns(record, field))
    if not any(turn.role == "user" for turn in turns):
        raise RecordError("no user's message")
    return Prompt(turns, origin, _category(record))


def _category(record: dict[str, Any]) -> str:
    return next((str(record[name]) for name in _CATEGORY_FIELDS if record.get(name)), "")


def _system(record: dict[str, Any]) -> list[Turn]:
    text = record.get("system")
    return [Turn("system", text)] if isinstance(text, str) and text.strip() else []


def _turns(record: dict[str, Any], field: str | None) -> list[Turn]:
    if field is not None:
        if field not in record:
            raise RecordError(f"no field {field!r}")
        return _value(record[field])
    for name in ("messages", "conversations", "turns"):
        if isinstance(record.get(name), list):
            return _value(record[name])
    for name in _TEXT_FIELDS:
        if record.get(name):
            extra = record.get("input") if name == "instruction" else None
            return _value(f"{record[name]}\n\n{extra}" if isinstance(extra, str) and extra.strip() else record[name])
    raise RecordError("no prompt in it")


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
