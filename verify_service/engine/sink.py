"""Who hears what the loop has to say."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from verify_service.core.request import RequestKey, StepOutput
from verify_service.kv_cache.cache_events import CacheEvents

_log = logging.getLogger(__name__)


class Sink(NamedTuple):
    """Called on the loop's thread; none may wait."""

    outputs: Callable[[list[StepOutput]], None]
    """Takes one list a step."""
    started: Callable[[list[RequestKey]], None] = lambda keys: None
    """Takes requests of which a step is about to compute the first rows."""
    cached: Callable[[CacheEvents], None] = lambda events: None
    """Takes what has changed in the prefix cache, once that is asked for."""

    def deliver(self, outputs: list[StepOutput]) -> None:
        """Hand outputs over, if there are any. The loop outlives the sink's mistakes."""
        if outputs:
            try:
                self.outputs(outputs)
            except Exception:  # noqa: BLE001 - the loop must outlive its sink's mistakes
                _log.exception("the sink failed to take %d outputs", len(outputs))

    def tell_cached(self, events: CacheEvents | None) -> None:
        """Hand changes of the prefix cache over, if there are any. The loop outlives the sink's mistakes."""
        if events is not None:
            try:
                self.cached(events)
            except Exception:  # noqa: BLE001 - the loop must outlive its sink's mistakes
                _log.exception("the sink failed to take changes of the prefix cache")
