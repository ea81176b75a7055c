"""What one verify service has to compute before the next request's first token, as far as this gateway knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.replicas.cached_prefixes import CachedPrefixes
from gateway.replicas.prompt_prefix import PromptPrefix


@dataclass(slots=True, eq=False)
class ReplicaLoad:
    """Prompts sent there that have no token yet, what is cached there, and counts of what was sent.

    `queued_tokens` are those of prompts that are still to be computed, and `used` is when a request was sent there
    last, in seconds. Counts outlive sessions: `sent` choices, and `hit_tokens` and `computed_tokens` of their prompts
    as far as these were looked up; `gaps` are times when news of the cache were missing.
    """

    queued_tokens: int = 0
    used: float = 0.0
    prefixes: CachedPrefixes = field(default_factory=CachedPrefixes)
    sent: int = 0
    hit_tokens: int = 0
    computed_tokens: int = 0
    gaps: int = 0
    _waiting: dict[int, tuple[int, Sequence[int]]] = field(default_factory=dict)

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
        self._waiting[request_id] = (computed + received, expected)

    def leave(self, request_id: int) -> None:
        """A choice has its first output, or is over there in whatever way: its prompt is to be computed no more."""
        waiting = self._waiting.pop(request_id, None)
        if waiting is not None:
            self.queued_tokens -= waiting[0]
            self.prefixes.unexpect(waiting[1])

    def clear(self) -> None:
        """The session has broken: nothing runs there, and what is cached is unknown."""
        self.queued_tokens = 0
        self._waiting.clear()
        self.prefixes = CachedPrefixes()
