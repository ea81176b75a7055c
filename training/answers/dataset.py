"""Answers on disk: shards of JSON lines, one token sequence a line, and an index with their checksums.

A line holds `id` and `part` (a conversation is one sequence, or several that cannot be one: `training.answers.
sequences`), `token_ids`, `produced` (half-open spans of `token_ids` that the target produced), `turns`, `messages`,
`origin` and `category`. Ids are those the gateway gave: nothing here, and nobody who reads this, tokenises text.

Recorded conversations (`training.recorded`) are kept likewise, without `turns` and `messages`; their index says
`recorded`, as what they call produced was written by others than the target.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from training.common.atomic_files import AppendFile, DamagedError, sha256_of, sync_folder, write_whole

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

INDEX: Final = "index.json"
FORMAT: Final = "slipstream-answers"
VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class AnswerSequence:
    """token_ids int32 [T]; produced bool [T]: whether the target produced token i, given those before it.

    recorded: whether others did, in its place.
    """

    id: str
    part: int
    category: str
    token_ids: npt.NDArray[np.int32]
    produced: npt.NDArray[np.bool_]
    recorded: bool = False


class Line(NamedTuple):
    """One sequence as it is written, and how many tokens it has in all and produced ones."""

    data: bytes
    tokens: int
    produced: int


class AnswerSet:
    """Reads a folder of answers. DamagedError where it is not whole."""

    def __init__(self, folder: Path) -> None:
        index = read_index(folder)
        if index is None:
            raise DamagedError(f"{folder} has no {INDEX}: the run that writes it is not complete")
        if (index.get("format"), index.get("version")) != (FORMAT, VERSION):
            raise DamagedError(f"{folder / INDEX} is not of {FORMAT} version {VERSION}")
        self.folder = folder
        self.index = index

    def __len__(self) -> int:
        return sum(shard["sequences"] for shard in self.index["shards"])

    @property
    def recorded(self) -> bool:
        """Whether others than the target wrote the answers."""
        return bool(self.index.get("recorded", False))

    def check(self) -> None:
        """Compare all shards with their checksums."""
        for shard in self.index["shards"]:
            if sha256_of(self.folder / shard["file"]) != shard["sha256"]:
                raise DamagedError(f"{self.folder / shard['file']} is not what was written")

    def records(self, first: int = 0) -> Iterator[dict[str, Any]]:
        """The lines from the `first`-th on, as they were written."""
        before = 0
        for shard in self.index["shards"]:
            if before + shard["sequences"] > first:
                with (self.folder / shard["file"]).open("rb") as stream:
                    for number, line in enumerate(stream, before):
                        if number >= first:
                            yield json.loads(line)
            before += shard["sequences"]

    def sequences(self, first: int = 0) -> Iterator[AnswerSequence]:
        """The sequences from the `first`-th on."""
        import numpy as np

        for record in self.records(first):
            token_ids = np.array(record["token_ids"], dtype=np.int32)
            produced = np.zeros(len(token_ids), dtype=np.bool_)
            for start, end in record["produced"]:
                produced[start:end] = True
            yield AnswerSequence(record["id"], record["part"], record["category"], token_ids, produced, self.recorded)


def read_index(folder: Path) -> dict[str, Any] | None:
    """The index of answers that are complete."""
    file = folder / INDEX
    return json.loads(file.read_bytes()) if file.is_file() else None


def write_set(
    folder: Path, records: Iterable[dict[str, Any]], facts: dict[str, Any], shard_sequences: int
) -> dict[str, Any]:
    """Write what became of conversations, in order, without those that failed; gives the index, to which `facts` go."""
    lines = (_line(line) for record in records for line in _lines(record))
    return write_lines(folder, lines, lambda: facts, shard_sequences)


def write_lines(
    folder: Path, lines: Iterator[Line], facts: Callable[[], dict[str, Any]], shard_sequences: int
) -> dict[str, Any]:
    """Write sequences in order; gives the index, to which go what `facts` tells after the last one.

    The index comes last, so that what a killed run leaves is taken for incomplete.
    """
    (folder / INDEX).unlink(missing_ok=True)
    for leftover in folder.glob("answers-*.jsonl*"):
        leftover.unlink()
    shards: list[dict[str, Any]] = []
    while shard := _write_shard(folder / f"answers-{len(shards):05d}.jsonl", lines, shard_sequences):
        shards.append(shard)
    sync_folder(folder)
    index = {"format": FORMAT, "version": VERSION, **facts(), "shards": shards}
    write_whole(folder / INDEX, json.dumps(index, indent=1, ensure_ascii=False).encode("utf-8") + b"\n")
    return index


def _lines(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for part, sequence in enumerate(record["sequences"]):
        facts = {"id": record["id"], "part": part, "origin": record["origin"], "category": record["category"]}
        yield facts | sequence


def _line(line: dict[str, Any]) -> Line:
    data = json.dumps(line, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
    return Line(data, len(line["token_ids"]), sum(end - start for start, end in line["produced"]))


def _write_shard(path: Path, lines: Iterator[Line], count: int) -> dict[str, Any]:
    """The next `count` lines in a file; what the index says of it, nothing if no line is left."""
    digest = hashlib.sha256()
    facts = Counter({"sequences": 0, "tokens": 0, "produced": 0, "bytes": 0})
    file: AppendFile | None = None
    try:
        for line in lines:
            file = file or AppendFile(path, 0)
            file.append(line.data)
            digest.update(line.data)
            facts["sequences"] += 1
            facts["tokens"] += line.tokens
            facts["produced"] += line.produced
            facts["bytes"] += len(line.data)
            if facts["sequences"] == count:
                break
        if file is None:
            return {}
        file.sync()
    finally:
        if file is not None:
            file.close()
    return {"file": path.name, **facts, "sha256": digest.hexdigest()}
