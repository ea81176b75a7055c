"""Many outputs generated together, all or none."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from slipstream.client import Client, Stream
from slipstream.completion import Completion, Options, collect

MAX_STREAMS = 64
"""Outputs generated together; more wait here."""


@dataclass(frozen=True, slots=True)
class BatchItem:
    """One output to generate."""

    token_ids: Sequence[int]
    options: Options


class _Streams:
    """The streams under way. Once closed, one that is still opened is cancelled."""

    __slots__ = ("_closed", "_lock", "_open")

    def __init__(self) -> None:
        self._open: set[Stream] = set()
        self._closed = False
        self._lock = threading.Lock()

    def read(self, stream: Stream) -> Completion:
        with stream:
            with self._lock:
                self._open.add(stream)
                if self._closed:
                    stream.close()
            try:
                return collect(stream)
            finally:
                with self._lock:
                    self._open.discard(stream)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for stream in self._open:
                stream.close()


def complete(client: Client, jobs: Sequence[BatchItem]) -> Generator[tuple[int, Completion]]:
    """Yield index and output of each job, in order of completion.

    What is left is cancelled at the first error, which is raised, and when the iterator is closed.
    """
    streams = _Streams()

    def generate(job: BatchItem) -> Completion:
        return streams.read(client.stream(token_ids=job.token_ids, **job.options))

    with ThreadPoolExecutor(max(1, min(MAX_STREAMS, len(jobs))), thread_name_prefix="generate") as threads:
        try:
            pending = {threads.submit(generate, job): index for index, job in enumerate(jobs)}
            for future in as_completed(pending):
                yield pending[future], future.result()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            streams.close()
