"""The stage `evaluate`: has all prompts answered under each proposer and temperature, and sums up what steps yielded.

Each conversation is on disk before the next one of its worker is asked, so an interrupted run goes on where it stood.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from slipstream.client import AsyncClient
from slipstream.completion import Model
from slipstream.rpc.errors import NotFoundError
from slipstream_kernels.progress import ProgressBar
from training.answers.asker import FIRST_CONTACT_SECONDS, served_model
from training.answers.inputs import distinct_prompts
from training.answers.journal import Journal
from training.answers.run import Gateway
from training.common.atomic_files import MismatchError, described, sole_user, write_whole
from training.evaluate.counters import DecodeCounts
from training.evaluate.probe import Probe, record_key
from training.evaluate.settings import AcceptanceSettings, Cell
from training.prompts.records import Prompt

JOURNAL: Final = "journal.jsonl"
RESULT: Final = "acceptance.json"
FORMAT: Final = "slipstream-acceptance"
VERSION: Final = 1
ALL: Final = "all"
FRESH: Final = "all, of conversations that never repeat themselves"
NO_CATEGORY: Final = "without a category"


def measure_acceptance(
    inputs: Sequence[Path], folder: Path, gateway: Gateway, settings: AcceptanceSettings, *, progress: bool = True
) -> dict[str, Any]:
    """The figures of every cell, kept in `folder`; goes on where an equal run was interrupted.

    ValueError where the inputs hold no prompt, MismatchError where the folder belongs to another run, GatewayGoneError
    when patience is at an end (what has been answered is kept), NotFoundError for a proposer that nobody offers.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with sole_user(folder):
        task = {"settings": settings.document(), "inputs": [described(path) for path in inputs]}
        done = read_result(folder)
        if done is not None:
            if {name: done[name] for name in task} != task:
                raise MismatchError(f"{folder} holds figures of other prompts or settings")
            (folder / JOURNAL).unlink(missing_ok=True)  # of a run that was killed as it ended
            return done
        prompts = select(list(distinct_prompts(inputs)), settings.limit)
        if not prompts:
            raise ValueError("there is no prompt in the inputs")
        return asyncio.run(_measure(prompts, folder, gateway, settings, task, progress))


def read_result(folder: Path) -> dict[str, Any] | None:
    """The figures of a run that is complete."""
    file = folder / RESULT
    return json.loads(file.read_bytes()) if file.is_file() else None


def remove_run(folder: Path) -> None:
    """Remove everything a run has written, the figures first."""
    if folder.is_dir():
        with sole_user(folder):
            for name in (RESULT, JOURNAL):
                (folder / name).unlink(missing_ok=True)


def select(prompts: Sequence[Prompt], limit: int | None) -> list[Prompt]:
    """At most `limit` of the prompts, in their order: categories in turn, of each those of the lowest hashes."""
    if limit is None:
        return list(prompts)
    ranks: Counter[str] = Counter()
    order: list[tuple[int, str]] = []
    for prompt in sorted(prompts, key=lambda each: each.key):
        order.append((ranks[prompt.category], prompt.key))
        ranks[prompt.category] += 1
    chosen = {key for _, key in sorted(order)[:limit]}
    return [prompt for prompt in prompts if prompt.key in chosen]


async def _measure(
    prompts: Sequence[Prompt],
    folder: Path,
    gateway: Gateway,
    settings: AcceptanceSettings,
    task: dict[str, Any],
    progress: bool,
) -> dict[str, Any]:
    async with AsyncClient(gateway.address, api_key=gateway.api_key) as client:
        model = await served_model(client, settings.model, min(gateway.patience, FIRST_CONTACT_SECONDS))
        _check(model, settings)
        task |= {"model": {"name": model.name, "max_context": model.max_context, "vocab_size": model.vocab_size}}
        journal = Journal(folder / JOURNAL, task)
        probe = Probe(client, model, settings, gateway.patience)
        try:
            with ProgressBar(
                total=len(prompts) * len(settings.cells), initial=len(journal), disable=not progress
            ) as bar:
                for cell in settings.cells:
                    bar.set_description(cell.label)
                    await _fill(cell, prompts, journal, probe, gateway.concurrency, bar)
        finally:
            journal.close()
    result = {"format": FORMAT, "version": VERSION, **task, "prompts": len(prompts)} | sum_up(
        prompts, journal, settings.cells
    )
    write_whole(folder / RESULT, json.dumps(result, indent=1, ensure_ascii=False).encode("utf-8") + b"\n")
    journal.path.unlink()
    return result


async def _fill(
    cell: Cell, prompts: Sequence[Prompt], journal: Journal, probe: Probe, concurrency: int, bar: ProgressBar
) -> None:
    waiting = iter([prompt for prompt in prompts if record_key(prompt.key, cell) not in journal])

    async def work() -> None:
        for prompt in waiting:
            journal.add(await probe.measure(prompt, cell))
            bar.update()

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(work())
    except ExceptionGroup as group:
        raise group.exceptions[0] from group


def _check(model: Model, settings: AcceptanceSettings) -> None:
    unknown = sorted(set(settings.proposers) - set(model.proposers))
    if unknown:
        offered = ", ".join(model.proposers) or "none"
        raise NotFoundError(f"the gateway knows no proposer {', '.join(unknown)}; it knows: {offered}")


def sum_up(prompts: Sequence[Prompt], journal: Journal, cells: Sequence[Cell]) -> dict[str, Any]:
    """Figures by cell and category, failures by reason, and how many conversations two cells answered differently.

    Conversations that failed in any cell count in none, so that all cells are about the same text.
    """
    failures: Counter[str] = Counter()
    tallies: dict[tuple[Cell, str], DecodeCounts] = {}
    different: Counter[Cell] = Counter()
    for prompt in prompts:
        records = {cell: journal.read(record_key(prompt.key, cell)) for cell in cells}
        reasons = [record["failure"] for record in records.values() if record["failure"]]
        if reasons:
            failures[reasons[0].split(":", 1)[0]] += 1
            continue
        for cell, record in records.items():
            first = next(each for other, each in records.items() if other.temperature == cell.temperature)
            different[cell] += record["digest"] != first["digest"]
            for category in _categories(record):
                tallies.setdefault((cell, category), DecodeCounts()).add(record)
    names = sorted({category for _, category in tallies} - {ALL, FRESH})
    return {
        "failures": dict(sorted(failures.items())),
        "cells": [
            {"proposer": cell.proposer, "temperature": cell.temperature, "different_answers": different[cell]}
            | {"categories": _documents(tallies, cell, [*names, ALL, FRESH])}
            for cell in cells
        ],
    }


def _categories(record: Mapping[str, Any]) -> list[str]:
    fresh = not any(answer["repeats"] for answer in record["answers"])
    return [record["category"] or NO_CATEGORY, ALL, *([FRESH] if fresh else [])]


def _documents(tallies: Mapping[tuple[Cell, str], DecodeCounts], cell: Cell, names: Sequence[str]) -> dict[str, Any]:
    return {name: tallies[cell, name].document() for name in names if (cell, name) in tallies}
