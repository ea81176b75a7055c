"""Work ahead of requests, done by a loop that has none: what passes for attached drafters need."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

from verify_service.core.device_fault import end_if_device_lost
from verify_service.engine.hidden_state_capture import HiddenStateCapture
from verify_service.model_runner.base import ModelRunner

_log = logging.getLogger(__name__)


class WorkAhead:
    """Does one piece at a time, on the loop's thread, and tells any thread for which boundaries all is done."""

    def __init__(self, engine: ModelRunner[Any], features: HiddenStateCapture) -> None:
        self._engine = engine
        self._features = features
        self._done: frozenset[int] = frozenset()
        self.pieces = 0
        """Done so far."""

    def prepare(self) -> bool:
        """Do a piece, of what is wanted now; whether more may be left. What fails costs the loop nothing."""
        more = False
        try:
            self._features.prepare()
            more = self._engine.prepare()
            self.pieces += more
        except Exception:  # noqa: BLE001 - the loop must outlive work that nobody waits for
            _log.exception("work ahead of requests failed")
            end_if_device_lost()
        if not more:
            self._done = frozenset(self._features.boundaries)
        return more

    def is_done(self, boundaries: Collection[int]) -> bool:
        """Whether passes that keep states at these boundaries need nothing more."""
        return self._done.issuperset(boundaries)
