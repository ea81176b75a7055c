"""Files of prompts in the forms in which they are published, read into records, and these into conversations."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Record = dict[str, Any]
Message = tuple[str, str]
"""Role and content."""

_SPEAKER = re.compile(r"^(system|user|assistant|tool): ", re.MULTILINE)


def records(path: Path) -> list[Record]:
    """The records of JSON lines, a JSON list, one run (.traj) or a table with a header (.csv), perhaps gzipped."""
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    endings = path.suffixes
    if ".csv" in endings:
        return list(csv.DictReader(io.StringIO(text)))
    if ".traj" in endings or text.startswith("["):
        content = json.loads(text)
        return content if isinstance(content, list) else [content]
    # On the newline byte only: texts may hold U+2028.
    return [json.loads(line) for line in text.split("\n") if line.strip()]


def trajectory(record: Record) -> list[Message]:
    """The messages of an agent's run; none if the record is of another form. Calls of tools are part of a message."""
    if "traj" in record or "history" in record:
        return [_message(message) for message in record.get("traj") or record["history"]]
    if "messages_display" in record:
        parts = _SPEAKER.split(record["messages_display"])[1:]
        return [(role, said.strip()) for role, said in zip(parts[::2], parts[1::2], strict=True)]
    content = record.get("content")
    if isinstance(content, dict) and "system_response" in content:
        names = {"system": "system_prompt", "user": "human_message", "assistant": "system_response"}
        return [(role, content[name]) for role, name in names.items()]
    return []


def exchange(record: Record, databases: dict[str, str]) -> Message:
    """What is asked in one go, and what was answered. Raises KeyError for records of another form.

    `databases`: what is known of each database, for questions whose answer is a query.
    """
    if "query" in record:
        name = record["db_id"] if "db_id" in record else record["db_name"]
        known = "\n".join(filter(None, (databases.get(name), record.get("instructions"))))
        return f"Database {name}\n{known}\n\nWrite an SQL query: {record['question']}", record["query"]
    question = record["prompt"] if "prompt" in record else record["question"]
    return question, record["reference"] if "reference" in record else record["answer"]


def databases_beside(path: Path) -> dict[str, str]:
    """Tables and their columns of the databases in spider_tables.json of the same folder, if it is there."""
    beside = path.parent / "spider_tables.json"
    if not beside.is_file():
        return {}
    return {each["db_id"]: "\n".join(_tables(each)) for each in records(beside)}


def _tables(database: Record) -> Iterator[str]:
    for index, table in enumerate(database["table_names_original"]):
        columns = [name for owner, name in database["column_names_original"] if owner == index]
        yield f"{table}({', '.join(columns)})"


def _message(message: Record) -> Message:
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return message["role"], f"{message.get('content') or ''}{json.dumps(calls) if calls else ''}"
