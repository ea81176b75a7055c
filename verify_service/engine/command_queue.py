"""Commands on their way to the loop's thread."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from slipstream.rpc.errors import SlipstreamError
from verify_service.core.request import GenerationRequest, RequestKey
from verify_service.core.request_state import RequestState
from verify_service.engine.adapter_host import AdapterCommand
from verify_service.grammar.request_grammar import RequestGrammar
from verify_service.kv_cache.cache_events import TellCache


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """End one request."""

    key: RequestKey


@dataclass(frozen=True, slots=True)
class CancelSession:
    """End all requests of a session."""

    session_id: int


@dataclass(frozen=True, slots=True, eq=False)
class GrammarReady:
    """The grammar of a request that waits for it is there, or refused."""

    state: RequestState
    result: RequestGrammar | SlipstreamError


@dataclass(frozen=True, slots=True)
class Drain:
    """Refuse new requests from here on."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End the loop."""


Command = GenerationRequest | CancelRequest | CancelSession | GrammarReady | AdapterCommand | TellCache | Drain | Stop


class CommandQueue:
    """An ordered queue with one reader, who sleeps while there is nothing to do."""

    def __init__(self) -> None:
        self._commands: list[Command] = []
        self._changed = threading.Condition()
        self._resting = False

    def put(self, command: Command) -> None:
        with self._changed:
            self._commands.append(command)
            self._changed.notify_all()

    def take(self, *, wait: bool, seconds: float | None = None, owes: bool = False) -> list[Command]:
        """All commands so far. With `wait`, which says that the reader has no other work, at least one.

        None after so many `seconds`, if any are given. `owes`: the reader waits for a command without which it has not
        done all that it was asked for.
        """
        if not wait and not self._commands:
            return []
        with self._changed:
            self._resting = wait and not owes
            self._changed.notify_all()
            if wait:
                self._changed.wait_for(lambda: self._commands, seconds)
            self._resting = False
            commands, self._commands = self._commands, []
            return commands

    def wait_idle(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds until the reader has neither commands nor other work; returns whether so."""
        with self._changed:
            return self._changed.wait_for(lambda: self._resting and not self._commands, timeout)
