"""Requests that wait until their grammars are compiled, apart from those that wait for a place."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

from slipstream.rpc.errors import (
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    ResourceExhaustedError,
    SlipstreamError,
)
from verify_service.core.request_state import RequestState
from verify_service.engine.command_queue import GrammarReady
from verify_service.grammar.compiler import GrammarCompiler, Result
from verify_service.grammar.matcher import CompiledGrammar, GrammarFailure
from verify_service.grammar.request_grammar import RequestGrammar

_log = logging.getLogger(__name__)

FOLLOW_SECONDS = 10.0
"""The longest that the output of a request that is resumed may take to follow by its grammar."""
_PART_SECONDS = 2e-3
_MOST_AT_ONCE = 256


class GrammarGate:
    """Used by the loop's thread. `tell` takes, from any thread, a request whose grammar is there or refused."""

    def __init__(
        self, compiler: GrammarCompiler | None, tell: Callable[[GrammarReady], None], *, most_waiting: int
    ) -> None:
        self._compiler = compiler
        self._tell = tell
        self._most_waiting = most_waiting
        self._waiting: set[RequestState] = set()

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    def pass_through(self, state: RequestState) -> bool:
        """Return whether a request has all it needs; else it waits, and `tell` is called.

        Raises SlipstreamError for a grammar that was refused before, or that nobody can compile now.
        """
        grammar = state.parameters.sampling.grammar
        if grammar is None or state.only_scores:
            return True
        if self._compiler is None:
            raise FailedPreconditionError("this verify service takes no grammars", field="grammar")
        if len(self._waiting) >= self._most_waiting:
            raise ResourceExhaustedError(f"{len(self._waiting)} requests wait for their grammars, which is the limit")
        # Output is followed by a thread of the compiler: that takes as long as the output is long.
        result = self._compiler.compile(
            grammar,
            lambda result: self._tell(GrammarReady(state, _begun(state, result))),
            at_length=bool(state.request.output_token_ids),
        )
        if result is None:
            self._waiting.add(state)
            return False
        self._settle(state, _begun(state, result))
        return True

    def open(self, ready: GrammarReady) -> bool:
        """Return whether a request still waits, and give it its grammar. Raises what that is refused for."""
        if not self.leave(ready.state):
            return False
        self._settle(ready.state, ready.result)
        return True

    def leave(self, state: RequestState) -> bool:
        """Forget a request; return whether it waited here."""
        if state not in self._waiting:
            return False
        self._waiting.remove(state)
        return True

    @staticmethod
    def _settle(state: RequestState, result: RequestGrammar | SlipstreamError) -> None:
        if isinstance(result, SlipstreamError):
            raise result
        state.grammar = result


def _begun(state: RequestState, result: Result) -> RequestGrammar | SlipstreamError:
    """Return the request's grammar, brought to what was output before, or why there is none."""
    if isinstance(result, SlipstreamError):
        return result
    try:
        return _followed(state, result)
    except SlipstreamError as error:
        return error
    except BaseException:  # noqa: BLE001 - every request gets an answer, after a panic too
        _log.exception("a request's grammar was not begun")
        return InternalError("the grammar of this request was not begun")


def _followed(state: RequestState, compiled: CompiledGrammar) -> RequestGrammar:
    params, output = state.parameters.sampling, state.request.output_token_ids
    grammar = RequestGrammar(
        compiled,
        starts_after=params.grammar.starts_after if params.grammar is not None else (),
        stops=params.stop_token_ids,
        until_stopped=params.ignore_eos,
        min_tokens=params.min_tokens,
    )
    latest = time.monotonic() + FOLLOW_SECONDS
    try:
        for end in _ends_of_parts(len(output)):
            grammar.follow_output(output[:end])
            if end < len(output) and time.monotonic() > latest:
                raise InvalidArgumentError(
                    f"output_token_ids takes longer than {FOLLOW_SECONDS:g} s to follow by the grammar: {end} of "
                    f"{len(output)} ids are done",
                    field="output_token_ids",
                )
    except GrammarFailure as failure:
        raise InvalidArgumentError(
            f"output_token_ids are not what the grammar allows: {failure}", field="output_token_ids"
        ) from failure
    return grammar


def _ends_of_parts(count: int) -> Iterator[int]:
    """Yield where each part of an output ends that is followed at a time, so that a part takes some milliseconds.

    Other threads of Python stand still meanwhile.
    """
    end, part = 0, 1
    while end < count:
        begun = time.monotonic()
        end = min(count, end + part)
        yield end
        seconds = time.monotonic() - begun
        part = min(part * 2, _MOST_AT_ONCE) if seconds < _PART_SECONDS / 2 else max(1, part // 2)
