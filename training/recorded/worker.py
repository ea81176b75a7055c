"""What a worker process does with lines of recordings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from training.answers.dataset import Line
from training.answers.sequences import TokenSequence
from training.common.workers import follow_parent
from training.prompts.records import Prompt, RecordError, read_recording
from training.recorded.chat_tokenizer import ChatTokenizer
from training.recorded.rendering import Rendering
from training.recorded.settings import RecordingSettings

NOTHING: Final = "nothing to learn from"


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a line: the sequences that are to be written, or the `reason` why there are none."""

    key: bytes = b""
    """Names the recording by its content."""
    category: str = ""
    lines: tuple[Line, ...] = ()
    reason: str = ""
    ended: str = ""


@cache
def chat_tokenizer(rendering: Rendering, max_tokens: int) -> ChatTokenizer:
    """The process's own, made once."""
    return ChatTokenizer(rendering, max_tokens)


def begin_worker(rendering: Rendering, settings: RecordingSettings) -> None:
    """Prepare a worker process, which ends when the process that started it does."""
    follow_parent()
    chat_tokenizer(rendering, settings.max_tokens)


def write_lines(rendering: Rendering, settings: RecordingSettings, lines: Sequence[tuple[str, bytes]]) -> list[Result]:
    """One task of the pool: origin and bytes of lines."""
    read = [_read(line, origin, settings.field) for origin, line in lines]
    recordings = [each for each in read if isinstance(each, Prompt)]
    written = iter(chat_tokenizer(rendering, settings.max_tokens).write(recordings))
    results: list[Result] = []
    for each in read:
        if isinstance(each, str):
            results.append(Result(reason=each))
            continue
        made, key = next(written), each.key
        done = tuple(_line(key, part, each, sequence) for part, sequence in enumerate(made.sequences))
        reason = made.reason or ("" if done else NOTHING)
        results.append(Result(bytes.fromhex(key), each.category, done, reason, made.ended))
    return results


def _read(line: bytes, origin: str, field: str | None) -> Prompt | str:
    try:
        return read_recording(line, origin, field)
    except RecordError as error:
        return str(error)


def _line(key: str, part: int, recording: Prompt, sequence: TokenSequence) -> Line:
    facts = {
        "id": key,
        "part": part,
        "origin": recording.origin,
        "category": recording.category,
        "token_ids": sequence.token_ids,
        "produced": sequence.produced,
    }
    text = json.dumps(facts, ensure_ascii=False, separators=(",", ":"))
    produced = sum(end - start for start, end in sequence.produced)
    return Line(text.encode("utf-8", "backslashreplace") + b"\n", len(sequence.token_ids), produced)
