"""Work behind the launch of a step, which goes on whatever becomes of that work."""

from __future__ import annotations

import logging
from collections.abc import Callable

_log = logging.getLogger(__name__)


def attempt(work: Callable[[], None]) -> None:
    """Do some work; a failure is logged alone, for the step is under way already."""
    try:
        work()
    except Exception:  # noqa: BLE001 - see above
        _log.exception("what was to be done behind the launch of a step failed")
