"""What drafters are to hear of the step decided last: at once, or behind the launch of the next one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from verify_service.core.request_state import RequestState
from verify_service.engine.hidden_state_capture import HiddenStateCapture, States
from verify_service.speculation.controller import SpeculationController

Progress = Sequence[tuple[RequestState, tuple[int, ...]]]
"""Requests that go on, with the tokens that a step has added to each."""


class DrafterUpdates:
    """Holds what a step has added, and the states behind it, until it is sent."""

    def __init__(self, speculation: SpeculationController, features: HiddenStateCapture) -> None:
        self._speculation = speculation
        self._features = features
        self._unsent: tuple[Progress, Callable[[], States]] | None = None

    def put(self, progressed: Progress, features: Callable[[], States]) -> None:
        """Take in what a step has added. What was put before has been sent."""
        self._unsent = progressed, features

    def send(self, running: int, *, launched: bool = False) -> None:
        """Send what is unsent, and store its states. Arguments as of `SpeculationController.send_commits`."""
        if self._unsent is None:
            return
        (progressed, features), self._unsent = self._unsent, None
        going_on = [entry for entry in progressed if not entry[0].finished]
        try:
            self._speculation.send_commits(going_on, running, features(), launched=launched)
        finally:
            self._features.keep()
