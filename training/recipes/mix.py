"""Prompts in pieces to be answered one after the other: `python -m training.recipes.mix TRAIN.jsonl FOLDER`.

The order may be cut off anywhere, as where there is no time for more: two of three pieces are prompts as they are,
once, at temperature 0, and every third asks prompts again, at another temperature or at 0 under a system message.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, Final

from training.recipes.passages import long_prompts, passages_in

PLAN: Final = "plan"
FIRSTS_BETWEEN: Final = 2
"""Pieces asked for the first time between two that ask again."""


@dataclass(frozen=True, slots=True)
class Share:
    """Which part is taken of the prompts whose category begins with `prefix`: the first time, and again."""

    prefix: str
    first: float
    again: float

    @classmethod
    def parsed(cls, text: str) -> Share:
        """PREFIX=FIRST:AGAIN. ValueError for anything else."""
        prefix, _, parts = text.rpartition("=")
        first, _, again = parts.partition(":")
        try:
            share = cls(prefix, float(first), float(again))
        except ValueError as error:
            raise ValueError(f"{text!r} is no PREFIX=FIRST:AGAIN, as in gsm8k=1:0.35") from error
        if not prefix or not (0 <= share.first <= 1 and 0 <= share.again <= 1):
            raise ValueError(f"{text!r} must have a prefix, and parts from 0 to 1")
        return share


KNOWN: Final = (
    *(
        Share(prefix, 0.3, 0.0)
        for prefix in (
            "python-functions", "git-commit-edits", "python-edits-derived", "leetcode-solutions", "mbpp", "HumanEval",
            "code_edit", "exercism",
        )
    ),
    *(
        Share(prefix, 1.0, 0.35)
        for prefix in ("synthetic-math-own", "opentriviaqa", "open-english-wordnet", "tldr-pages", "gsm8k")
    ),
)  # fmt: skip
"""Of public sets: code, whose answers are long, and those whose answers are much alike."""


@dataclass(frozen=True, slots=True)
class Round:
    """How prompts are asked again; `system` is put before those that have no system message."""

    temperature: float
    system: str = ""


ROUNDS: Final = (
    Round(0.0, "You are a helpful assistant."),
    Round(0.7),
    Round(0.0, "Answer in detail."),
    Round(1.0),
    Round(0.0, "You are a friendly chat partner."),
    Round(0.7),
)


@dataclass(frozen=True, slots=True)
class Piece:
    """Prompts that are answered together. `seed`: 0 the first time, then the number of the round."""

    temperature: float
    seed: int
    records: list[dict[str, Any]]


def mixed(
    records: Sequence[dict[str, Any]],
    size: int,
    shares: Sequence[Share] = (),
    rounds: Sequence[Round] = ROUNDS,
    seed: int = 11,
) -> list[Piece]:
    """Pieces of at most `size` prompts, in the order in which to answer them. Equal arguments give equal pieces."""
    rng = random.Random(seed)
    taken = [_share_of(record, shares) for record in records]
    first = [record for record, share in zip(records, taken, strict=True) if rng.random() < share.first]
    again = [record for record, share in zip(records, taken, strict=True) if rng.random() < share.again]
    rng.shuffle(first)
    firsts = [Piece(0.0, 0, part) for part in _parts(first, size)]
    by_round: list[list[Piece]] = []
    for number, each in enumerate(rounds, 1):
        rng.shuffle(again)
        parts = _parts([_under(each.system, record) for record in again], size)
        by_round.append([Piece(each.temperature, number, part) for part in parts])
    agains = list(chain.from_iterable(zip(*by_round, strict=True)))
    groups = [firsts[start : start + FIRSTS_BETWEEN] for start in range(0, len(firsts), FIRSTS_BETWEEN)]
    pairs = zip_longest(groups, agains)
    return [piece for group, extra in pairs for piece in (*(group or ()), *((extra,) if extra else ()))]


def write(pieces: Iterable[Piece], folder: Path) -> None:
    """FOLDER/0000.jsonl and so on, and FOLDER/plan: a line `0000 TEMPERATURE SEED` for each."""
    folder.mkdir(parents=True, exist_ok=True)
    plan = []
    for number, piece in enumerate(pieces):
        name = f"{number:04d}"
        lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in piece.records)
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8", errors="backslashreplace")
        plan.append(f"{name} {piece.temperature:g} {piece.seed}\n")
    (folder / PLAN).write_text("".join(plan), encoding="utf-8")


def _share_of(record: dict[str, Any], shares: Sequence[Share]) -> Share:
    """The first that fits the category, or the file where there is none."""
    name = str(record.get("category") or record.get("origin", ""))
    return next((share for share in shares if name.startswith(share.prefix)), Share("", 1.0, 1.0))


def _under(system: str, record: dict[str, Any]) -> dict[str, Any]:
    if not system or record["messages"][0]["role"] == "system":
        return record
    return record | {"messages": [{"role": "system", "content": system}, *record["messages"]]}


def _parts(records: Sequence[dict[str, Any]], size: int) -> list[list[dict[str, Any]]]:
    return [list(records[start : start + size]) for start in range(0, len(records), size)]


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m training.recipes.mix", description=__doc__)
    parser.add_argument("train", type=Path, help="train.jsonl of `slipstream train prompts`")
    parser.add_argument("folder", type=Path, help="where pieces and plan go")
    parser.add_argument("--size", type=int, default=1000, help="prompts of a piece (default: %(default)s)")
    parser.add_argument("--share", action="append", metavar="PREFIX=FIRST:AGAIN",
                        help="take these parts, the first time and again, of categories (files, where there is none) "
                        "that begin so (default: less of code and of what has much the same answers)")  # fmt: skip
    parser.add_argument("--long", type=int, default=0, metavar="COUNT", help="long prompts to add (default: none)")
    parser.add_argument("--long-from", action="append", metavar="PREFIX",
                        help="categories whose passages they are put together of (default: all)")  # fmt: skip
    options = parser.parse_args(arguments)
    if options.size < 1 or options.long < 0:
        parser.error("--size must be at least 1, --long must not be negative")
    try:
        shares = [Share.parsed(text) for text in options.share] if options.share else KNOWN
        lines = sorted(options.train.read_text(encoding="utf-8").split("\n"))
    except (OSError, ValueError) as error:
        parser.error(str(error))
    records: list[dict[str, Any]] = [json.loads(line) for line in lines if line.strip()]
    asked = passages_in(records, options.long_from or ("",)) if options.long else []
    records += long_prompts(asked, options.long)
    if not records:
        parser.error(f"{options.train} holds no prompt")
    if options.long and not asked:
        print(f"no long prompts: nothing in {options.train} is a question with a passage under it")
    pieces = mixed(records, options.size, shares)
    write(pieces, options.folder)
    first = sum(len(piece.records) for piece in pieces if not piece.seed)
    every = sum(len(piece.records) for piece in pieces)
    print(f"{len(records)} prompts in {len(pieces)} pieces: {first} as they are, {every - first} asked again")


if __name__ == "__main__":
    main()
