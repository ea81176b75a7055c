"""The stage `prompts`: reads, has every prompt examined, drops duplicates, splits and writes.

Results are taken in the order of the inputs and decided upon by one process, so the outputs depend neither on the
number of workers nor on interruptions. A few chunks are under way at a time; what has been seen lies on disk.
"""

from __future__ import annotations

import hashlib
import multiprocessing
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

from slipstream_kernels.progress import ProgressBar
from training.common.atomic_files import described, sole_user
from training.prompts.examine import Verdict, begin_worker, examine_all, examiner
from training.prompts.pii import load_pipeline
from training.prompts.records import (
    TEXT,
    Prompt,
    RecordError,
    Turn,
    conversation_key,
    read_lines,
    read_prompt,
    read_questions,
    read_recording,
    said,
)
from training.prompts.report import render
from training.prompts.settings import PromptSettings
from training.prompts.store import Position, Store, read_manifest, remove_state

CHUNK: Final = 128
"""Lines of one task of a worker, and of one transaction."""

MALFORMED: Final = "malformed"
DUPLICATE: Final = "duplicate"
NEAR_DUPLICATE: Final = "near-duplicate"
EVALUATION: Final = "evaluation"


@dataclass(slots=True)
class _Entry:
    """One line. `verdict` comes later, where `prompt` is there and no duplicate."""

    origin: str
    prompt: Prompt | None = None
    error: str = ""
    duplicate: bool = False
    verdict: Verdict | None = None


@dataclass(slots=True)
class _Chunk:
    """Lines examined together, and where the inputs stand after them."""

    entries: list[_Entry]
    after: Position
    verdicts: Callable[[], list[Verdict]] = field(default=list)


def clean_prompts(
    inputs: Sequence[Path],
    folder: Path,
    settings: PromptSettings,
    *,
    against: Sequence[Path] = (),
    workers: int = 1,
    progress: bool = True,
) -> dict[str, Any]:
    """Clean `inputs` into `folder`, going on where a run with the same settings was interrupted; gives the manifest.

    against: files with prompts that are evaluated on; what equals one of them, or nearly so, is dropped.
    MismatchError where the folder belongs to another run, ValueError for settings that cannot be met.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with sole_user(folder):
        files = {"inputs": inputs, "against": against}
        task = {"settings": settings.document()} | {
            name: [described(path) for path in paths] for name, paths in files.items()
        }
        done = read_manifest(folder)
        if done is None or {name: done.get(name) for name in task} != task:
            if settings.names:
                load_pipeline(settings.names)  # or fail here, not in every worker
            store = Store(folder, settings, task)
            try:
                if store.begins:
                    _keep_out(against, store, settings)
                _clean(inputs, store, settings, workers, progress)
                manifest = {"format": "slipstream-prompts", "version": 1, **task, **store.tally.document()}
                store.finish(manifest, render(manifest))
            finally:
                store.close()
        remove_state(folder)
        finished = read_manifest(folder)
    assert finished is not None
    return finished


def _keep_out(against: Sequence[Path], store: Store, settings: PromptSettings) -> None:
    """Remember the prompts that are evaluated on. ValueError for a file that holds none."""
    for path in against:
        prompts = []
        for number, line in read_lines(path):
            with suppress(RecordError):
                prompts += read_questions(line, f"{path.name}:{number}")
        if not prompts:
            raise ValueError(f"{path} holds no prompt that could be kept out")
        for prompt in prompts:
            for signature in examiner(settings).signatures(prompt):
                store.evaluated.add(prompt.origin, signature)


def _clean(inputs: Sequence[Path], store: Store, settings: PromptSettings, workers: int, progress: bool) -> None:
    total = sum(1 for path in inputs for _ in read_lines(path))
    waiting: deque[_Chunk] = deque()
    pending: set[bytes] = set()
    with (
        ProgressBar(total=total, initial=store.tally.read, desc="prompts", unit="line", disable=not progress) as bar,
        ExitStack() as stack,
    ):
        submit = _submitter(stack, settings, workers)
        for chunk in _chunks(inputs, store, settings, pending):
            chunk.verdicts = submit([each.prompt for each in chunk.entries if each.prompt and not each.duplicate])
            waiting.append(chunk)
            if len(waiting) > 2 * workers:
                bar.update(_settle(waiting.popleft(), store, settings, pending))
        while waiting:
            bar.update(_settle(waiting.popleft(), store, settings, pending))


def _chunks(inputs: Sequence[Path], store: Store, settings: PromptSettings, pending: set[bytes]) -> Iterator[_Chunk]:
    """Lines from the store's position on; texts that have been seen or are under way are marked as duplicates."""
    start = store.position
    for index, path in enumerate(inputs[start.file :], start.file):
        lines = read_lines(path, start.line if index == start.file else 0)
        while group := list(islice(lines, CHUNK)):
            entries = [_read(path, number, line, settings) for number, line in group]
            for entry in entries:
                if entry.prompt is not None:
                    digest = _digest(entry.prompt.turns)
                    entry.duplicate = digest in pending or store.seen(digest)
                    if not entry.duplicate:  # what is a duplicate is not settled
                        pending.add(digest)
            yield _Chunk(entries, Position(index, group[-1][0]))


def _read(path: Path, number: int, line: bytes, settings: PromptSettings) -> _Entry:
    origin = f"{path.name}:{number}"
    try:
        read = read_recording if settings.keep_answers else read_prompt
        return _Entry(origin, read(line, origin, settings.field))
    except RecordError as error:
        return _Entry(origin, error=str(error))


def _digest(turns: Sequence[Turn]) -> bytes:
    return bytes.fromhex(conversation_key(turns))


def _submitter(
    stack: ExitStack, settings: PromptSettings, workers: int
) -> Callable[[list[Prompt]], Callable[[], list[Verdict]]]:
    """Has prompts examined, here or by worker processes; the result waits for its answer."""
    if workers <= 1:
        return lambda prompts: lambda: examine_all(settings, prompts)
    pool = ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), initializer=begin_worker, initargs=(settings,)
    )
    stack.callback(pool.shutdown, cancel_futures=True)

    def submit(prompts: list[Prompt]) -> Callable[[], list[Verdict]]:
        future: Future[list[Verdict]] = pool.submit(examine_all, settings, prompts)
        return future.result

    return submit


def _settle(chunk: _Chunk, store: Store, settings: PromptSettings, pending: set[bytes]) -> int:
    """Decide upon a chunk, write it and make it count; gives its number of lines."""
    verdicts = iter(chunk.verdicts())
    for entry in chunk.entries:
        store.tally.read += 1
        if entry.prompt is None:
            _drop(store, MALFORMED, entry.origin, entry.error)
        elif entry.duplicate:
            _drop(store, DUPLICATE, entry.origin, "")
        else:
            digest = _digest(entry.prompt.turns)
            store.see(digest)
            pending.discard(digest)
            _decide(store, settings, entry.prompt, next(verdicts))
    store.position = chunk.after
    store.commit()
    return len(chunk.entries)


def _decide(store: Store, settings: PromptSettings, prompt: Prompt, verdict: Verdict) -> None:
    for kind, sample in verdict.found:
        store.tally.find(kind, sample)
    if verdict.reason:
        _drop(store, verdict.reason, prompt.origin, verdict.detail)
        return
    for signature in filter(None, (verdict.signature, verdict.opening)):
        if (evaluated := store.evaluated.find(signature)) is not None:
            _drop(store, EVALUATION, prompt.origin, f"like {evaluated}")
            return
    resembled = store.near.find(verdict.signature)
    if resembled is not None:
        _drop(store, NEAR_DUPLICATE, prompt.origin, f"of {resembled}")
        return
    key = conversation_key(verdict.turns)
    store.near.add(key, verdict.signature)
    split = "heldout" if is_heldout(verdict.turns, settings.heldout) else "train"
    record: dict[str, Any] = {"id": key, **_content(verdict.turns), "origin": prompt.origin}
    record |= {"category": prompt.category} if prompt.category else {}
    record |= {"tokens": verdict.tokens} if verdict.tokens is not None else {}
    store.write(f"{split}.jsonl", record)
    store.tally.keep(split, verdict.tokens, cleaned=bool(verdict.found))


def _content(turns: Sequence[Turn]) -> dict[str, Any]:
    if turns[0].role == TEXT:
        return {"text": turns[0].content}
    return {"messages": [{"role": turn.role, "content": turn.content} for turn in turns]}


def _drop(store: Store, reason: str, origin: str, detail: str) -> None:
    store.tally.drop(reason, origin, detail)
    store.write("dropped.jsonl", {"origin": origin, "reason": reason, **({"detail": detail} if detail else {})})


def is_heldout(turns: Sequence[Turn], share: float) -> bool:
    """Whether a text is kept from training: a function of what its users say alone, so it never changes sides."""
    digest = hashlib.sha256(said(turns).encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "little") < share * 2.0**64
