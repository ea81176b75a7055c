"""The gateway's text workers: processes that read requests, and may be killed at any time without harm to others."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import socket
from array import array
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from gateway.config import GatewaySettings
from gateway.core.request import VerifyInfo
from gateway.text.connection import WorkerConnection, WorkerEndedError
from gateway.text.fork_server import ForkServerOptions
from gateway.text.prepared import FIELDS, Prepared, WorkerTask
from gateway.text.queue import WorkerQueue
from gateway.text.server_process import ServerProcess
from slipstream.rpc.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError

_log = logging.getLogger(__name__)

LARGE_BYTES: Final = 64 * 1024
"""Bytes from which on a request is a large job."""

_MIB: Final = 1024 * 1024
_LOADING_BYTES: Final = 1024 * _MIB
_ATTEMPTS: Final = 3
"""Workers that may end under a request before it is to blame."""
_RETRY_SECONDS: Final = 1.0


class TextWorkers:
    """A fork server and its workers. A worker that is late with a job is killed; one that has ended is replaced."""

    def __init__(self, settings: GatewaySettings, on_end: Callable[[str], None]) -> None:
        """`on_end` is told why a worker ended: "deadline" or "crash"."""
        self._settings = settings
        self._on_end = on_end
        self._options = ForkServerOptions(
            parent=os.getpid(),
            model=os.fspath(settings.model),
            chat_template="" if settings.chat_template is None else os.fspath(settings.chat_template),
            max_bytes=settings.max_body_bytes,
            max_choices=settings.max_choices,
            worker_memory_bytes=settings.text_memory_mib * _MIB,
            loading_memory_bytes=_LOADING_BYTES,
            log_level=settings.log_level,
            log_format=settings.log_format,
            tool_call_parser=settings.tool_call_parser,
            reasoning_parser=settings.reasoning_parser,
        )
        self._queue = WorkerQueue(settings.text_workers)
        self._server: ServerProcess | None = None
        self._workers: dict[int, WorkerConnection] = {}
        self._numbers = 0
        self._facts: tuple[VerifyInfo | None, bytes] = (None, b"")
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def ready(self) -> bool:
        """Whether there are workers, or will be in a moment."""
        return self._server is not None

    async def start(self) -> None:
        """Load tokenizer and template, and fork the workers.

        FailedPreconditionError naming the file if that fails, takes more memory than 1 GiB or too long.
        """
        self._server = await ServerProcess.start(self._options, self._settings.text_loading_seconds)
        self._keep(self._watch_server())
        await asyncio.gather(*(self._fork() for _ in range(self._settings.text_workers)))

    async def close(self) -> None:
        """End all processes."""
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        workers, self._workers = self._workers, {}
        for worker in workers.values():
            worker.close()
        if self._server is not None:
            self._server.close()
            self._server = None

    async def prepare(self, job: WorkerTask, payload: bytes | bytearray, info: VerifyInfo) -> Prepared:
        """Read a request and tokenise its prompts. InvalidArgumentError naming the field, NotFoundError."""
        prepared = await self._run(job, payload, info)
        assert isinstance(prepared, Prepared)
        return prepared

    async def tokenize(self, payload: bytes, info: VerifyInfo) -> array[int]:
        """Token ids for a TokenizeRequest. Errors as of `prepare`."""
        ids: array[int] = await self._run(WorkerTask.TOKENIZE, payload, info)
        return ids

    async def answer(self, job: WorkerTask, payload: bytes | bytearray, info: VerifyInfo) -> bytes:
        """The body of the answer to a request that a worker answers by itself. Errors as of `prepare`."""
        body: bytes = await self._run(job, payload, info)
        return body

    async def _run(self, job: WorkerTask, payload: bytes | bytearray, info: VerifyInfo) -> Any:
        if self._facts[0] is not info:
            self._facts = (info, pickle.dumps(info, pickle.HIGHEST_PROTOCOL))
        facts, field, server = self._facts[1], FIELDS[job], self._server
        for _ in range(_ATTEMPTS):
            worker = await self._queue.take(large=len(payload) > LARGE_BYTES)
            try:
                return await worker.ask(job, facts, payload)
            except WorkerEndedError:
                if worker.late:
                    reason = f"{field}: not rendered and tokenised within {self._settings.text_seconds:g} s"
                    raise InvalidArgumentError(reason, field=field) from None
        if self._server is not server or server is None:
            raise UnavailableError("the text workers were lost; retry later")
        most = self._settings.text_memory_mib
        reason = f"{field}: rendering or tokenising ends its process, which may take {most} MiB of memory"
        raise InvalidArgumentError(reason, field=field)

    def _kill(self, worker: WorkerConnection) -> None:
        """A worker is late. Its request does not wait for the fork server to obey."""
        if self._server is not None:
            with contextlib.suppress(OSError):
                self._server.kill(worker.number)
        worker.close()

    async def _fork(self) -> None:
        """Fork a worker, which joins the queue by itself. Tries until there is a server to fork it."""
        loop = asyncio.get_running_loop()
        while True:
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            self._numbers += 1
            worker = WorkerConnection(
                self._numbers,
                self._settings.text_seconds,
                on_free=self._queue.free,
                on_late=self._kill,
                on_end=self._on_worker_end,
            )
            with theirs:
                try:
                    if self._server is not None:
                        self._server.fork(worker.number, theirs)
                        self._workers[worker.number] = worker
                        await loop.create_unix_connection(partial(_same, worker), sock=ours)
                        return
                except OSError as error:
                    _log.warning("a text worker cannot be started: %s", error)
            ours.close()
            await asyncio.sleep(_RETRY_SECONDS)

    def _on_worker_end(self, worker: WorkerConnection) -> None:
        self._queue.discard(worker)
        if self._workers.pop(worker.number, None) is None:
            return
        _log.warning("a text worker %s; it is replaced", "was killed as it was late" if worker.late else "has ended")
        self._on_end("deadline" if worker.late else "crash")
        self._keep(self._replace(worker))

    async def _replace(self, worker: WorkerConnection) -> None:
        if not worker.began:
            await asyncio.sleep(_RETRY_SECONDS)
        await self._fork()

    async def _watch_server(self) -> None:
        """Start the fork server again whenever it has gone."""
        while self._server is not None:
            ending = await self._server.wait_end()
            self._server = None
            _log.error("the text workers' fork server %s; it is started again", ending)
            while self._server is None:
                try:
                    self._server = await ServerProcess.start(self._options, self._settings.text_loading_seconds)
                except (FailedPreconditionError, OSError) as error:
                    _log.error("the text workers' fork server cannot be started: %s", error)
                    await asyncio.sleep(_RETRY_SECONDS)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _same(worker: WorkerConnection) -> WorkerConnection:
    return worker
