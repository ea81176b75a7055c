"""The stage `answers`: asks a running gateway, keeps each answer at once, and writes them in the prompts' order.

Answers are functions of model, prompt, settings and seed, and seeds are functions of prompts; so the shards are the
same to the byte whatever the concurrency, the order of completion and the interruptions were.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from slipstream.client import AsyncClient
from slipstream.completion import Model
from slipstream_kernels.progress import ProgressBar
from training.answers.asker import FIRST_CONTACT_SECONDS, Asker, served_model
from training.answers.dataset import INDEX, read_index, write_set
from training.answers.gateway_workers import Share, ask_all, ask_shares, facts_of
from training.answers.inputs import distinct_prompts, read_prompts
from training.answers.journal import Journal
from training.answers.settings import AnswerSettings
from training.answers.summary import AnsweringRun, Summary
from training.common.atomic_files import MismatchError, described, sole_user, write_whole

JOURNAL: Final = "journal.jsonl"
FAILED: Final = "failed.jsonl"


@dataclass(frozen=True, slots=True)
class Gateway:
    """Whom to ask and how hard. None of it changes an answer."""

    address: str
    api_key: str = ""
    concurrency: int = 32
    """Conversations answered together, by each gateway."""
    patience: float = 300.0
    """Seconds for which an answer is tried again before the run is given up."""
    others: tuple[str, ...] = ()
    """Further gateways of the same target, which answer their shares of the prompts beside the first one."""


def collect_answers(
    inputs: Sequence[Path],
    folder: Path,
    gateway: Gateway,
    settings: AnswerSettings,
    *,
    shard_sequences: int = 10_000,
    retry_failed: bool = False,
    progress: bool = True,
) -> AnsweringRun:
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
            if not done["summary"]["failures"]:
                (folder / JOURNAL).unlink(missing_ok=True)  # of a run that was killed as it ended
            return AnsweringRun(done)
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
) -> AnsweringRun:
    async with AsyncClient(gateway.address, api_key=gateway.api_key) as client:
        model = await served_model(client, settings.model, min(gateway.patience, FIRST_CONTACT_SECONDS))
        task |= {"model": facts_of(model)}
        journal = Journal(folder / JOURNAL, task, retry_failed=retry_failed)
        outcome = AnsweringRun({})
        try:
            total = sum(1 for _ in distinct_prompts(inputs))
            with ProgressBar(
                total=total, initial=len(journal), desc="answers", unit="conv", disable=not progress
            ) as bar:
                intake = _Intake(journal, settings, outcome, bar)
                await _ask_all(inputs, journal, client, model, gateway, intake)
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


async def _ask_all(
    inputs: Sequence[Path], journal: Journal, client: AsyncClient, model: Model, whom: Gateway, intake: _Intake
) -> None:
    """Ask what the journal does not hold: here, or of several gateways in a process each."""
    settings, outcome = intake.settings, intake.outcome
    if not whom.others:
        asker = Asker(client, model, settings, whom.patience, outcome.retries)
        waiting = (prompt for prompt in distinct_prompts(inputs) if prompt.key not in journal)
        await ask_all(waiting, asker, whom.concurrency, intake.take)
        return
    addresses = (whom.address, *whom.others)
    known, more = journal.keys(), (whom.api_key, whom.concurrency, whom.patience, settings, model)
    shares = [
        Share(tuple(inputs), number, len(addresses), known, address, *more) for number, address in enumerate(addresses)
    ]
    outcome.retries += await asyncio.to_thread(ask_shares, shares, intake.take)


@dataclass(slots=True)
class _Intake:
    """Keeps what comes, and tells of it."""

    journal: Journal
    settings: AnswerSettings
    outcome: AnsweringRun
    bar: ProgressBar
    began: float = field(default_factory=time.monotonic)

    def take(self, record: dict[str, Any]) -> None:
        self.journal.add(record)
        turns = (turn for sequence in record["sequences"] for turn in sequence["turns"])
        self.outcome.answered += 1
        self.outcome.tokens += sum(turn["completion_tokens"] for turn in turns)
        self.outcome.seconds = time.monotonic() - self.began
        rate = self.outcome.tokens / self.outcome.seconds
        self.bar.set_postfix_str(f"{rate:.0f} tok/s, {self.journal.failures} failed", refresh=False)
        self.bar.update()


def remove_run(folder: Path) -> None:
    """Remove everything a run has written, the index first."""
    if folder.is_dir():
        with sole_user(folder):
            for path in (folder / INDEX, folder / JOURNAL, folder / FAILED, *folder.glob("answers-*.jsonl")):
                path.unlink(missing_ok=True)
