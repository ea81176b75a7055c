"""The stage `recorded`: recordings into the kind of set that `answers` writes, without a server.

Lines are written by worker processes and taken in the order of the inputs, so the files do not depend on their number.
A run that was interrupted begins anew: it takes seconds.
"""

from __future__ import annotations

import multiprocessing
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any, Final

from slipstream_kernels.progress import ProgressBar
from training.answers.dataset import INDEX, Line, read_index, write_lines
from training.common.atomic_files import check_task, described, sole_user
from training.prompts.records import read_lines
from training.recorded.counters import LineCounts, RecordedRun
from training.recorded.rendering import Rendering
from training.recorded.settings import RecordingSettings
from training.recorded.worker import Result, begin_worker
from training.recorded.worker import write_lines as write_task

CHUNK: Final = 512
"""Lines of one task of a worker."""
DUPLICATE: Final = "duplicate"

Origin = tuple[str, bytes]


def write_recordings(
    inputs: Sequence[Path],
    folder: Path,
    rendering: Rendering,
    vocab_size: int,
    settings: RecordingSettings,
    *,
    workers: int = 1,
    shard_sequences: int = 10_000,
    progress: bool = True,
) -> RecordedRun:
    """Write the recordings of `inputs` into `folder` as sequences of the target that `rendering` names.

    MismatchError where the folder belongs to another run, ValueError where the target has no chat template's end.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with sole_user(folder):
        task: dict[str, Any] = {
            "recorded": True,
            "settings": settings.document() | {"shard_sequences": shard_sequences},
            "inputs": [described(path) for path in inputs],
            "model": {"vocab_size": vocab_size} | rendering.document(),
        }
        done = read_index(folder)
        if done is not None:
            check_task(folder / INDEX, done, task)
            return RecordedRun(done)
        began = time.monotonic()
        tally = LineCounts()
        with ExitStack() as stack:
            lines = _chosen(inputs, settings.limit)
            bar = stack.enter_context(
                ProgressBar(total=settings.limit or None, desc="recorded", unit="line", disable=not progress)
            )
            results = _results(stack, lines, rendering, settings, workers)
            kept = _kept(results, tally, bar)
            index = write_lines(folder, kept, lambda: task | {"summary": tally.document()}, shard_sequences)
        return RecordedRun(index, time.monotonic() - began)


def _chosen(inputs: Sequence[Path], limit: int) -> Iterator[Origin]:
    """The lines, or `limit` of them, evenly spread."""
    total = sum(1 for path in inputs for _ in read_lines(path)) if limit else 0
    place = 0
    for path in inputs:
        for number, line in read_lines(path):
            if not limit or place * limit // total != (place + 1) * limit // total or total <= limit:
                yield f"{path.name}:{number}", line
            place += 1


def _results(
    stack: ExitStack, lines: Iterator[Origin], rendering: Rendering, settings: RecordingSettings, workers: int
) -> Iterator[Result]:
    """What becomes of each line, in order; a few tasks are under way at a time."""
    submit = _submitter(stack, rendering, settings, workers)
    waiting: deque[Callable[[], list[Result]]] = deque()
    while chunk := list(islice(lines, CHUNK)):
        waiting.append(submit(chunk))
        if len(waiting) > 3 * workers:
            yield from waiting.popleft()()
    while waiting:
        yield from waiting.popleft()()


def _submitter(
    stack: ExitStack, rendering: Rendering, settings: RecordingSettings, workers: int
) -> Callable[[list[Origin]], Callable[[], list[Result]]]:
    """Has lines written, here or by worker processes; the result waits for them."""
    if workers <= 1:
        return lambda lines: lambda: write_task(rendering, settings, lines)
    pool = ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), initializer=begin_worker, initargs=(rendering, settings)
    )
    stack.callback(pool.shutdown, cancel_futures=True)

    def submit(lines: list[Origin]) -> Callable[[], list[Result]]:
        future: Future[list[Result]] = pool.submit(write_task, rendering, settings, lines)
        return future.result

    return submit


def _kept(results: Iterator[Result], tally: LineCounts, bar: ProgressBar) -> Iterator[Line]:
    """The lines to write: of equal recordings those of the first."""
    seen: set[bytes] = set()
    for result in results:
        bar.update()
        tally.read += 1
        reason = result.reason or (DUPLICATE if result.key in seen else "")
        if reason:
            tally.dropped[reason] += 1
            continue
        seen.add(result.key)
        tally.kept += 1
        if result.ended:
            tally.ended[result.ended] += 1
        for line in result.lines:
            tally.add(result.category, line.tokens, line.produced)
            yield line


def remove_run(folder: Path) -> None:
    """Remove everything a run has written, the index first."""
    if folder.is_dir():
        with sole_user(folder):
            for path in (folder / INDEX, *folder.glob("answers-*.jsonl")):
                path.unlink(missing_ok=True)
