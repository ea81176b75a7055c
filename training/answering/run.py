"""The stage `answers`: asks a running gateway, keeps each answer at once, and writes them in the prompts' order.

Answers are functions of model, prompt, settings and seed, and seeds are functions of prompts; so the shards are the
same to the byte whatever the concurrency, the order of completion and the interruptions were.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tqdm import tqdm

from slipstream.client import AsyncClient
from slipstream.completion import Model
from slipstream.rpc.errors import NotFoundError
from training.answering.asker import Asker
from training.answering.dataset import INDEX, read_index, write_set
from training.answering.journal import Journal
from training.answering.settings import AnswerSettings
from training.answering.summary import Outcome, Summary
from training.durable import MismatchError, described, sole_user, write_whole
from training.prompts.records import Prompt, RecordError, read_lines, read_prompt

JOURNAL: Final = "journal.jsonl"
FAILED: Final = "failed.jsonl"
FIRST_CONTACT_SECONDS: Final = 10.0
"""How long the gateway may take to say what it serves."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """Whom to ask and how hard. None of it changes an answer."""

    address: str
    api_key: str = ""
    concurrency: int = 32
    patience: float = 300.0
    """Seconds for which an answer is tried again before the run is given up."""


def collect_answers(
    inputs: Sequence[Path],
    folder: Path,
    gateway: Gateway,
    settings: AnswerSettings,
    *,
    shard_sequences: int = 10_000,
    retry_failed: bool = False,
    progress: bool = True,
) -> Outcome:
    """Have the prompts of `inputs` answered into `folder`, going on where an equal run was interrupted.

    MismatchError where the folder belongs to another run, GatewayGoneError when patience is at an end (what has been
    answered is kept), SlipstreamError where the gateway refuses altogether.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with sole_user(folder):
        task = {"settings": settings.document(), "inputs": [described(path) for path in inputs]}
        done = read_index(folder)
        if done is not None and not (retry_failed and done["summary"]["failures"]):
            if {name: done[name] for name in task} != task:
                raise MismatchError(f"{folder} holds answers to other prompts or settings")
            return Outcome(done)
        return asyncio.run(_collect(inputs, folder, gateway, settings, task, shard_sequences, retry_failed, progress))


async def _collect(
    inputs: Sequence[Path],
    folder: Path,
    gateway: Gateway,
    settings: AnswerSettings,
    task: dict[str, Any],
    shard_sequences: int,
    retry_failed: bool,
    progress: bool,
) -> Outcome:
    async with AsyncClient(gateway.address, api_key=gateway.api_key) as client:
        model = await served_model(client, settings.model, min(gateway.patience, FIRST_CONTACT_SECONDS))
        task |= {"model": {"name": model.name, "max_context": model.max_context, "vocab_size": model.vocab_size}}
        journal = Journal(folder / JOURNAL, task, retry_failed=retry_failed)
        try:
            asker = Asker(client, model, settings, gateway.patience)
            outcome = await _ask_all(inputs, journal, asker, gateway.concurrency, progress)
        finally:
            journal.close()
    facts = task | {
        "malformed_lines": sum(prompt is None for prompt in read_prompts(inputs)),
        "summary": _sum_up(inputs, journal),
    }
    kept = (journal.read(prompt.key) for prompt in distinct_prompts(inputs))
    outcome.index = write_set(folder, kept, facts, shard_sequences)
    if not journal.failures:
        journal.path.unlink()
    return outcome


def _sum_up(inputs: Sequence[Path], journal: Journal) -> dict[str, Any]:
    """What all conversations came to; those that failed are listed in a file of their own."""
    summary = Summary()
    failed: list[str] = []
    for prompt in distinct_prompts(inputs):
        record = journal.read(prompt.key)
        summary.add(record)
        if record["failure"]:
            facts = {"id": record["id"], "origin": record["origin"], "reason": record["failure"]}
            failed.append(json.dumps(facts, ensure_ascii=False) + "\n")
    write_whole(journal.path.with_name(FAILED), "".join(failed).encode("utf-8", "backslashreplace"))
    return summary.document()


async def served_model(client: AsyncClient, name: str, patience: float) -> Model:
    """The model of that name, or the first one, at a gateway that may take `patience` seconds to be there.

    NotFoundError where there is none of that name.
    """
    first = Asker(client, Model("", 0, 0), AnswerSettings(), patience)
    models = await first.retried(client.list_models)
    found = next((model for model in models if name in ("", model.name)), None)
    if found is None:
        raise NotFoundError(f"the gateway serves no {name!r}, but {', '.join(model.name for model in models)}")
    return found


async def _ask_all(inputs: Sequence[Path], journal: Journal, asker: Asker, concurrency: int, progress: bool) -> Outcome:
    total = sum(1 for _ in distinct_prompts(inputs))
    waiting = (prompt for prompt in distinct_prompts(inputs) if prompt.key not in journal)
    outcome = Outcome({}, asker.retries)
    began = time.monotonic()
    with tqdm(total=total, initial=len(journal), desc="answers", unit="conv", disable=not progress) as bar:

        async def work() -> None:
            for prompt in waiting:
                answered = await asker.answer(prompt)
                journal.add(answered.document())
                outcome.answered += 1
                outcome.tokens += answered.completion_tokens
                rate = outcome.tokens / (time.monotonic() - began)
                bar.set_postfix_str(f"{rate:.0f} tok/s, {journal.failures} failed", refresh=False)
                bar.update()

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(concurrency):
                    group.create_task(work())
        except ExceptionGroup as group:
            raise group.exceptions[0] from group
    outcome.seconds = time.monotonic() - began
    return outcome


def read_prompts(inputs: Sequence[Path]) -> Iterator[Prompt | None]:
    """The prompts in order; None for a line that holds none."""
    for path in inputs:
        for number, line in read_lines(path):
            try:
                yield read_prompt(line, f"{path.name}:{number}")
            except RecordError:
                yield None


def distinct_prompts(inputs: Sequence[Path]) -> Iterator[Prompt]:
    """The prompts in order, each text once."""
    seen: set[bytes] = set()
    for prompt in read_prompts(inputs):
        if prompt is not None and (key := bytes.fromhex(prompt.key)) not in seen:
            seen.add(key)
            yield prompt


def remove_run(folder: Path) -> None:
    """Remove everything a run has written, the index first."""
    if folder.is_dir():
        with sole_user(folder):
            for path in (folder / INDEX, folder / JOURNAL, folder / FAILED, *folder.glob("answers-*.jsonl")):
                path.unlink(missing_ok=True)
