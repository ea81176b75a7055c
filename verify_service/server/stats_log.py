"""A line now and then while the service has something to do: how fast it is, for how many, and how well it drafts."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from verify_service.engine.loop_stats import LoopState

_log = logging.getLogger(__name__)


class StatsLog:
    """Compares the loop's counters with those of the last look."""

    def __init__(self, state: Callable[[], LoopState], clock: Callable[[], float] = time.monotonic) -> None:
        self._state = state
        self._clock = clock
        self._last, self._looked_at = state(), clock()

    async def run(self, seconds: float) -> None:
        """Log every so many seconds until cancelled."""
        while True:
            await asyncio.sleep(seconds)
            if line := self.line():
                _log.info("%s", line)

    def line(self) -> str:
        """What has happened since the last call; empty if nothing has, and nothing runs or waits."""
        before, since = self._last, self._looked_at
        now, self._looked_at = self._state(), self._clock()
        self._last = now
        if now.steps == before.steps and not (now.running or now.queued):
            return ""
        seconds = max(self._looked_at - since, 1e-9)
        prompt, hits = now.prompt_tokens - before.prompt_tokens, now.prefix_hit_tokens - before.prefix_hit_tokens
        tokens, steps = now.committed_tokens - before.committed_tokens, now.verify_steps - before.verify_steps
        drafted, accepted = now.drafted_tokens - before.drafted_tokens, now.accepted_tokens - before.accepted_tokens
        used = now.pages_total - now.pages_free - now.pages_cached
        parts = [
            f"prompt {prompt / seconds:.1f} tokens/s",
            f"generated {tokens / seconds:.1f} tokens/s",
            f"running {now.running}",
            f"waiting {now.queued}",
            f"KV cache {used / max(1, now.pages_total):.1%}",
        ]
        if prompt + hits:
            parts.append(f"prefix cache hits {hits / (prompt + hits):.1%}")
        if steps:
            parts.append(f"acceptance length {tokens / steps:.2f}")
        if drafted:
            parts.append(f"accepted {accepted / drafted:.1%} of {drafted / seconds:.1f} drafted tokens/s")
        if now.forecast.drafted_steps > before.forecast.drafted_steps:
            parts.append(f"trees to make it {now.forecast.gain_since(before.forecast) or 1.0:.2f} x as fast")
        return ", ".join(parts)
