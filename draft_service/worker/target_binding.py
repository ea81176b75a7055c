"""Which proposers fit a target, and why the others do not."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from draft_service.proposers.base import Proposer, Target
from draft_service.worker.commands import Binding
from slipstream.rpc.errors import FailedPreconditionError

_log = logging.getLogger(__name__)


class Fitting:
    """Tells proposers of targets. A failure of theirs is logged once, with its traceback, until it is another one."""

    __slots__ = ("_failures",)

    def __init__(self) -> None:
        self._failures: dict[str, str] = {}

    def bind(self, proposers: Sequence[Proposer], target: Target) -> Binding:
        """Tell each of them of the target."""
        reasons = {proposer.name: self._misfit(proposer, target) for proposer in proposers}
        unfit = {name: reason for name, reason in reasons.items() if reason}
        return Binding([proposer for proposer in proposers if proposer.name not in unfit], unfit)

    def _misfit(self, proposer: Proposer, target: Target) -> str:
        """Why it does not fit; empty if it does."""
        try:
            proposer.bind(target)
        except FailedPreconditionError as error:
            return error.message
        except Exception as error:  # noqa: BLE001 (a third party's code; it is not offered)
            reason = f"it failed to take the target: {error!r}"
            if self._failures.get(proposer.name) != reason:
                _log.exception("proposer %s failed to take the target", proposer.name)
            self._failures[proposer.name] = reason
            return reason
        self._failures.pop(proposer.name, None)
        missing = sorted(set(proposer.feature_boundaries) - set(target.feature_boundaries))
        return f"it wants states at boundaries {missing}, which are not published" if missing else ""
