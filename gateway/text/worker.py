"""The loop of one text worker, forked with tokenizer and template loaded."""

from __future__ import annotations

import logging
import pickle
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from gateway.core.request import VerifyInfo
from gateway.text.frames import Kind, read_request, write_answer
from gateway.text.jobs import Jobs
from gateway.text.prepared import FIELDS, Prepared
from slipstream.grammar.deep_stack import be_nice
from slipstream.panics import is_panic
from slipstream.process_limits import limit_memory
from slipstream.rpc.errors import InternalError, InvalidArgumentError, SlipstreamError

_log = logging.getLogger(__name__)


def serve(connection: socket.socket, jobs: Jobs, memory_bytes: int) -> None:
    """Do jobs until the gateway has gone. All of them together may use `memory_bytes` more than the process has."""
    checking = ThreadPoolExecutor(max_workers=1)
    checking.submit(be_nice).result()  # its stack is there before what the limit is counted from
    limit_memory(memory_bytes)
    info: VerifyInfo | None = None
    write_answer(connection, None)
    while request := read_request(connection):
        if request.facts:
            info = _info(request.facts)
        assert info is not None
        unchecked = _Unchecked(connection, checking)
        try:
            answer: object = jobs.run(request.job, request.payload, info, unchecked)
            kind = Kind.RESULT
            if unchecked.told:
                answer = None
        except BaseException as error:  # noqa: BLE001  # the edge of the process: every request gets an answer
            answer, kind = _domain_error(error, FIELDS[request.job], memory_bytes), Kind.ERROR
        del request
        write_answer(connection, answer, kind)
        del answer


class _Unchecked:
    """Tells the gateway of a request whose grammar is about to be checked, by a thread that lets others go first.

    A check may keep a processor busy for as long as it may take, beside the streams of other requests.
    """

    def __init__(self, connection: socket.socket, checking: ThreadPoolExecutor) -> None:
        self._connection = connection
        self._checking = checking
        self.told = False

    def __call__(self, prepared: Prepared, check: Callable[[], None]) -> None:
        write_answer(self._connection, prepared, Kind.UNCHECKED)
        self.told = True
        self._checking.submit(check).result()


def _info(facts: bytes) -> VerifyInfo:
    info = pickle.loads(facts)  # noqa: S301  # written by our own gateway
    assert isinstance(info, VerifyInfo)
    return info


def _domain_error(error: BaseException, field: str, memory_bytes: int) -> SlipstreamError:
    if isinstance(error, SlipstreamError):
        # What caused it stays here: it may be large, or unfit to be pickled.
        error.__cause__ = error.__context__ = None
        return error
    if isinstance(error, MemoryError):
        reason = f"{field}: reading, rendering and tokenising takes more than {memory_bytes // 2**20} MiB of memory"
        return InvalidArgumentError(reason, field=field)
    if is_panic(error):
        return InvalidArgumentError(f"{field}: {str(error)[:200]}", field=field)
    _log.error("unexpected error in a text worker", exc_info=error)
    return InternalError("internal error")
