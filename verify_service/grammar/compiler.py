"""Compiles grammars off the loop's thread, once they were tried out, and keeps those that were used lately."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from slipstream.grammar.check import check
from slipstream.grammar.grammar import Grammar
from slipstream.grammar.text import grammar_text
from slipstream.grammar.tokenizer import GrammarTokenizer
from slipstream.grammar.trial import check_start
from slipstream.panics import is_panic
from slipstream.rpc.errors import InternalError, InvalidArgumentError, ResourceExhaustedError, SlipstreamError
from verify_service.grammar.endless import may_force_without_end
from verify_service.grammar.forced_texts import ForcedTexts
from verify_service.grammar.matcher import CompiledGrammar
from verify_service.grammar.trials import GrammarTrials

_log = logging.getLogger(__name__)

THREAD_NAME = "grammar-compiler"
MAX_KEPT = 256
MAX_COMPILING = 8
"""Grammars that are tried out or compiled at the same time; others wait their turn."""
_RETRY_SECONDS = 1.0

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


class GrammarCompiler:
    """Thread-safe. A grammar's result is kept by its content: the same text again costs nothing.

    Each compilation has a thread of its own, which holds the interpreter's lock only for moments and cannot be stopped.
    So a grammar is compiled in a process that can be before: what takes longer than it may there never begins here.
    """

    def __init__(self, load_tokenizer: Callable[[], GrammarTokenizer], trials: GrammarTrials | None = None) -> None:
        """`load_tokenizer` is called once, by the first compilation.

        Without `trials` nothing bounds how long a grammar takes: for grammars that are no stranger's.
        """
        self._load_tokenizer = load_tokenizer
        self._trials = trials
        self._lock = threading.Lock()
        self._loading = threading.Lock()
        self._tokenizer: tuple[GrammarTokenizer, ForcedTexts] | None = None
        self._kept: OrderedDict[Grammar, Result] = OrderedDict()
        self._jobs: dict[Grammar, _Job] = {}
        self._queue: deque[_Job] = deque()
        self._compiling = 0
        self.compiled = 0
        """Grammars compiled so far."""
        self.ended = 0
        """Pieces of work that came to an end."""

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
            else:
                if key not in self._jobs:
                    self._jobs[key] = _Job(key)
                    self._queue.append(self._jobs[key])
                job = self._jobs[key]
                (job.at_length if at_length else job.listeners).append(listener)
            unstarted = self._begin_next()
        _refuse(unstarted)
        return None

    def _begin_next(self) -> list[_Job]:
        """Return the jobs for which there was no thread to be had, which are over."""
        unstarted = []
        while self._queue and self._compiling < MAX_COMPILING:
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
        result: Result
        try:
            result = job.known or self._tried_and_compiled(job.grammar)
        except SlipstreamError as error:
            result = error
        except BaseException as error:  # noqa: BLE001 - every request gets an answer
            _log.exception("a grammar was not compiled")
            if is_panic(error):
                name = f"grammar.{job.grammar.kind}"
                result = InvalidArgumentError(f"{name} cannot be compiled: {str(error)[:200]}", field=name)
            else:
                result = InternalError("the grammar of this request was not compiled")
        self._finish(job, result)

    def _tried_and_compiled(self, grammar: Grammar) -> CompiledGrammar:
        if self._trials is not None:
            self._trials.start()
        tokenizer = self._settled_tokenizer()
        if self._trials is not None:
            self._trials.run(grammar)
        return _compiled(grammar, *tokenizer, tried=self._trials is not None)

    def _settled_tokenizer(self) -> tuple[GrammarTokenizer, ForcedTexts]:
        with self._loading:
            if self._tokenizer is None:
                tokenizer = self._load_tokenizer()
                self._tokenizer = tokenizer, ForcedTexts(tokenizer)
            return self._tokenizer

    def _finish(self, job: _Job, result: Result) -> None:
        if job.known is not None:
            _tell(job, result)  # which is the work
        with self._lock:
            if job.known is None and isinstance(result, _LASTING):
                self._kept[job.grammar] = result
                while len(self._kept) > MAX_KEPT:
                    self._kept.popitem(last=False)
            if isinstance(result, CompiledGrammar) and job.known is None:
                self.compiled += 1
                self._queue.extend(_Job(job.grammar, [listener], known=result) for listener in job.at_length)
                job.at_length = []
            self._forget(job)
            self._compiling -= 1
            unstarted = self._begin_next()
        if job.known is None:
            _tell(job, result)
        _refuse(unstarted)

    def _forget(self, job: _Job) -> None:
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
        _tell(job, ResourceExhaustedError("there is no thread to be had for a grammar", retry_after=_RETRY_SECONDS))


def _compiled(
    grammar: Grammar, tokenizer: GrammarTokenizer, forced_texts: ForcedTexts, *, tried: bool = False
) -> CompiledGrammar:
    """Compile, and compute the first mask once, so that a grammar that trips a limit at once is refused.

    tried: a trial has checked it already.
    """
    text = grammar_text(grammar, tokenizer.specials.keys()) if tried else check(grammar, tokenizer)
    compiled = CompiledGrammar.compile(text, tokenizer, forced_texts, may_be_endless=may_force_without_end(grammar))
    check_start(grammar, compiled.start)
    return compiled
