"""What one verify service has to compute before the next request's first token, as far as this gateway knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gateway.replicas.cached_prefixes import CachedPrefixes
from gateway.replicas.prompt_prefix import PromptPrefix

SHORT_HITS: Final = 4
"""Prompts in a row of which less was cached than a service had told, while it told nothing else: its news have
stopped."""


class _Prompt(NamedTuple):
    """A prompt that has no token yet."""

    computed: int
    """Tokens that are to be computed."""
    expected: Sequence[int]
    """Prefixes that none before it will leave there."""
    told: int
    """Tokens that are cached at least, by what the service has told."""
    sequence: int | None
    """Number of the last news then."""


@dataclass(slots=True, eq=False)
class ReplicaLoad:
    """Prompts sent there that have no token yet, what is cached there, and counts of what was sent.

    `queued_tokens` are those of prompts that are still to be computed, and `used` is when a request was sent there
    last, in seconds. Counts outlive sessions: `sent` choices, and `hit_tokens` and `computed_tokens` of their prompts
    as far as these were looked up; `gaps` are times when news of the cache were missing, or had stopped.
    """

    queued_tokens: int = 0
    used: float = 0.0
    prefixes: CachedPrefixes = field(default_factory=CachedPrefixes)
    sent: int = 0
    hit_tokens: int = 0
    computed_tokens: int = 0
    gaps: int = 0
    _short_hits: int = 0
    _waiting: dict[int, _Prompt] = field(default_factory=dict)

    def enter(self, request_id: int, prompt: PromptPrefix | None, now: float, received: int = 0) -> None:
        """A choice is sent; `prompt` is None where prompts do not count, or the choice before has the same one.

        received: tokens of a choice that goes on, which are computed anew as those of its prompt are.
        Each waiting request expects the prefixes that none before it does, and so alone gives them up.
        """
        self.used = now
        self.sent += 1
        if prompt is None:
            return
        count = self.prefixes.count(prompt.names)
        cached, expected = prompt.cached_tokens(count), prompt.names[count:]
        self.prefixes.expect(expected)
        computed = prompt.tokens - cached
        self.queued_tokens += computed + received
        self.hit_tokens += cached
        self.computed_tokens += computed
        # The last page may not be taken, as one token at least is computed.
        told = prompt.cached_tokens(self.prefixes.told(prompt.names)) - prompt.page_size
        self._waiting[request_id] = _Prompt(computed + received, expected, told, self.prefixes.sequence)

    def leave(self, request_id: int, cached_tokens: int | None = None) -> bool:
        """A choice has its first output, or is over there in whatever way: its prompt is to be computed no more.

        cached_tokens: how many the service found cached, where it has said so.
        False where what it tells of its cache has stopped, so that none of it counts until a snapshot has come.
        """
        waiting = self._waiting.pop(request_id, None)
        if waiting is None:
            return True
        self.queued_tokens -= waiting.computed
        self.prefixes.unexpect(waiting.expected)
        if waiting.told <= 0 or cached_tokens is None:
            return True
        # What is not there is computed, and has come into the cache: a service that tells would have said so by now.
        short = cached_tokens < waiting.told and waiting.sequence == self.prefixes.sequence
        self._short_hits = self._short_hits + 1 if short else 0
        if self._short_hits < SHORT_HITS:
            return True
        self._short_hits = 0
        self.prefixes.forget()
        return False

    def clear(self) -> None:
        """The session has broken: nothing runs there, and what is cached is unknown."""
        self.queued_tokens = self._short_hits = 0
        self._waiting.clear()
        self.prefixes = CachedPrefixes()
