"""Compiles grammars off the loop's thread, within a time limit, and keeps those that were used lately."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from slipstream.grammar.check import check, refusal
from slipstream.grammar.grammar import Grammar
from slipstream.grammar.tokenizer import GrammarTokenizer
from slipstream.rpc.errors import InternalError, InvalidArgumentError, ResourceExhaustedError, SlipstreamError
from verify_service.grammar.forced_texts import ForcedTexts
from verify_service.grammar.matcher import CompiledGrammar

_log = logging.getLogger(__name__)

COMPILE_SECONDS = 2.0
"""The longest that a grammar may take to compile, on a machine that has time for it."""
THREAD_NAME = "grammar-compiler"
MAX_KEPT = 256
MAX_COMPILING = 2
"""Grammars that are compiled at the same time; others wait their turn."""
MAX_OVERDUE = 4
"""Threads that may still be at work on grammars whose time was up; while there are so many, no other is begun."""

Result = CompiledGrammar | SlipstreamError
Listener = Callable[[Result], None]
_LASTING = (CompiledGrammar, InvalidArgumentError)


@dataclass(slots=True, eq=False)
class _Job:
    """known: there is nothing to compile, and listeners have work to do on it."""

    grammar: Grammar
    listeners: list[Listener] = field(default_factory=list)
    at_length: list[Listener] = field(default_factory=list)
    known: CompiledGrammar | None = None
    over: bool = False


class GrammarCompiler:
    """Thread-safe. A grammar's result is kept by its content: the same text again costs nothing.

    Each compilation has a thread of its own, which holds the interpreter's lock only for moments. One that takes too
    long cannot be stopped: its request is refused at the limit, and llguidance's own limits end it later.
    """

    def __init__(
        self, load_tokenizer: Callable[[], GrammarTokenizer], *, compile_seconds: float = COMPILE_SECONDS
    ) -> None:
        """`load_tokenizer` is called once, by the first compilation, and its time is nobody's limit."""
        self._load_tokenizer = load_tokenizer
        self._seconds = compile_seconds
        self._lock = threading.Lock()
        self._loading = threading.Lock()
        self._tokenizer: tuple[GrammarTokenizer, ForcedTexts] | None = None
        self._kept: OrderedDict[Grammar, Result] = OrderedDict()
        self._jobs: dict[Grammar, _Job] = {}
        self._queue: deque[_Job] = deque()
        self._compiling = 0
        self._overdue = 0
        self.compiled = 0
        """Grammars compiled so far."""
        self.ended = 0
        """Pieces of work that came to an end, those given up included."""

    def compile(self, grammar: Grammar, listener: Listener, *, at_length: bool = False) -> Result | None:
        """Return what is known of a grammar; else None, and `listener` is told, once.

        An error is one that names field and keyword, the time limit, or that there is no room now. at_length: the
        listener has work to do on a grammar, so that one that is known is not returned either; another thread calls it,
        which takes one of the places of compilations meanwhile.
        """
        key = replace(grammar, starts_after=())
        with self._lock:
            result = self._kept.get(key)
            if result is not None:
                self._kept.move_to_end(key)
            if isinstance(result, CompiledGrammar) and at_length:
                self._queue.append(_Job(key, [listener], known=result))
            elif result is not None:
                return result
            elif key not in self._jobs and self._overdue >= MAX_OVERDUE:
                return self._no_room()
            else:
                if key not in self._jobs:
                    self._jobs[key] = _Job(key)
                    self._queue.append(self._jobs[key])
                job = self._jobs[key]
                (job.at_length if at_length else job.listeners).append(listener)
            unstarted = self._begin_next()
        _refuse(unstarted)
        return None

    def _no_room(self) -> ResourceExhaustedError:
        return ResourceExhaustedError(
            f"{self._overdue} grammars take longer than {self._seconds:g} s to compile; "
            "no other is begun before one of them is done",
            retry_after=self._seconds,
        )

    def _may_begin(self, job: _Job) -> bool:
        if job.known is not None:
            return self._compiling < MAX_COMPILING
        return self._compiling < min(MAX_COMPILING, MAX_OVERDUE - self._overdue)

    def _begin_next(self) -> list[_Job]:
        """Return the jobs for which there was no thread to be had, which are over."""
        unstarted = []
        while self._queue and self._may_begin(self._queue[0]):
            job = self._queue.popleft()
            try:
                threading.Thread(target=self._run, args=(job,), name=THREAD_NAME, daemon=True).start()
            except RuntimeError:
                self._forget(job)
                unstarted.append(job)
            else:
                self._compiling += 1
        return unstarted

    def _run(self, job: _Job) -> None:
        if job.known is not None:
            _tell(job, job.known)
            self._finish(job, job.known)
            return
        timer: threading.Timer | None = None
        try:
            tokenizer = self._settled_tokenizer()
            timer = threading.Timer(self._seconds, self._give_up, (job,))
            timer.daemon = True
            timer.start()
            result: Result = _compiled(job.grammar, *tokenizer)
        except SlipstreamError as error:
            result = error
        except Exception:  # noqa: BLE001 - every request gets an answer
            _log.exception("a grammar was not compiled")
            result = InternalError("the grammar of this request was not compiled")
        if timer is not None:
            timer.cancel()
        self._finish(job, result)

    def _settled_tokenizer(self) -> tuple[GrammarTokenizer, ForcedTexts]:
        with self._loading:
            if self._tokenizer is None:
                tokenizer = self._load_tokenizer()
                self._tokenizer = tokenizer, ForcedTexts(tokenizer)
            return self._tokenizer

    def _give_up(self, job: _Job) -> None:
        """Its time is up: the request is told, another takes the place."""
        error = InvalidArgumentError(
            f"grammar takes longer to compile than the limit of {self._seconds:g} s", field="grammar"
        )
        with self._lock:
            if job.over:
                return
            self._overdue += 1
            waiting = [each for each in self._queue if each.known is None] if self._overdue >= MAX_OVERDUE else []
            for each in waiting:
                self._queue.remove(each)
                self._forget(each)
            no_room = self._no_room()
            unstarted = self._let_go(job)
        _tell(job, error)
        _refuse(unstarted)
        for each in waiting:
            _tell(each, no_room)

    def _finish(self, job: _Job, result: Result) -> None:
        with self._lock:
            late = job.over
            if late:
                self._overdue -= 1
            # What compiles longer than it may is not kept; that a text is refused is true however long that took.
            if job.known is None and isinstance(result, InvalidArgumentError if late else _LASTING):
                self._kept[job.grammar] = result
                while len(self._kept) > MAX_KEPT:
                    self._kept.popitem(last=False)
            if isinstance(result, CompiledGrammar) and job.known is None and not late:
                self.compiled += 1
                self._queue.extend(_Job(job.grammar, [listener], known=result) for listener in job.at_length)
                job.at_length = []
            unstarted = self._begin_next() if late else self._let_go(job)
        if not late and job.known is None:
            _tell(job, result)
        _refuse(unstarted)

    def _let_go(self, job: _Job) -> list[_Job]:
        self._forget(job)
        self._compiling -= 1
        return self._begin_next()

    def _forget(self, job: _Job) -> None:
        job.over = True
        self.ended += 1
        if job.known is None:
            del self._jobs[job.grammar]


def _tell(job: _Job, result: Result) -> None:
    for listener in (*job.listeners, *job.at_length):
        try:
            listener(result)
        except Exception:  # noqa: BLE001 - the others get their answers
            _log.exception("a request was not told of its grammar")


def _refuse(jobs: list[_Job]) -> None:
    for job in jobs:
        _tell(job, ResourceExhaustedError("there is no thread to be had for a grammar", retry_after=COMPILE_SECONDS))


def _compiled(grammar: Grammar, tokenizer: GrammarTokenizer, forced_texts: ForcedTexts) -> CompiledGrammar:
    """Compile, and compute the first mask once, so that a grammar that trips a limit at once is refused."""
    text = check(grammar, tokenizer)
    compiled = CompiledGrammar.compile(text, tokenizer, forced_texts)
    field_name = f"grammar.{grammar.kind}"
    if compiled.start.is_error():
        raise refusal(field_name, compiled.start.get_error().strip().partition("\n")[0])
    probe = compiled.start.deep_copy()
    first = probe.compute_bitmask()
    if probe.is_error():
        raise refusal(field_name, probe.get_error().strip().partition("\n")[0])
    if not any(first):
        raise refusal(field_name, "it allows no output at all")
    return compiled
