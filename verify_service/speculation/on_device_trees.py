"""Trees that a device drafts behind a step under way, whichever state that leads to.

With them the next step is launched before drafters are told of the one that they were drafted behind:

    device  |------- pass n -------|-- draft --|------- pass n + 1 -------|-- draft --|
    host       launch n + 1        decide n    read the trees, tell of n, enqueue the draft behind n + 1, launch n + 2

Where step n has to be decided first, as grammars or several tenants want it, n + 1 is launched then.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence

from slipstream_kernels.device_tree import DeviceTree
from slipstream_kernels.token_tree import TokenTree
from verify_service.core.draft_source import DraftSource, EnqueuedDrafts, EnqueuedRequest, ReadEvents
from verify_service.core.request import RequestKey
from verify_service.core.request_state import RequestState
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.core.step_result import DeviceStepResult
from verify_service.model_runner.device_trees import copy_to_host, not_on_host, verifies_all_nodes
from verify_service.speculation.acceptance_model import proposed_tree
from verify_service.speculation.draft_latency import DraftLatency
from verify_service.speculation.node_selection import NodeSelector

_log = logging.getLogger(__name__)

_MOST = 0.75
"""Of the requests that ask for a tree, how many must have one promised: the others decode a step plainly."""
_PATIENCE = 4
"""Steps in a row that a request may so decode plainly, before one is launched after all answers."""


class OnDeviceTrees:
    """Trees promised behind the newest step, and those in a step that the host does not know yet."""

    def __init__(self, source: DraftSource, latency: DraftLatency, selector: NodeSelector) -> None:
        self._source = source
        self._latency = latency
        self._selector = selector
        self._promised: dict[RequestState, DeviceTree] = {}
        self._asking: list[RequestState] = []
        """Requests that will ask for a tree, promised or not."""
        self._unserved: dict[RequestState, int] = {}
        """Of those without one, for how many steps in a row."""
        self._waited: tuple[list[RequestKey], float] = [], 0.0
        """The last wait for trees, of which the drafter was not told."""
        self._untold: dict[RequestKey, None] = {}
        """Requests whose step was launched with a promised tree, of which their drafters do not know."""

    @property
    def suffice(self) -> bool:
        """Whether the next step is best launched with the promised trees alone."""
        promised = [state.finished for state in self._promised].count(False)
        asking = [state.finished for state in self._asking].count(False)
        patient = all(steps <= _PATIENCE for state, steps in self._unserved.items() if not state.finished)
        return patient and 0 < promised >= _MOST * asking

    @property
    def of_one_round(self) -> bool:
        """Whether one round drafts all promised trees."""
        return len({id(tree.trees) for tree in self._promised.values()}) == 1

    def enqueue(
        self, deciding: Sequence[ScheduledRequest], asking: Collection[RequestKey], outcome: DeviceStepResult
    ) -> ReadEvents:
        """Enqueue drafting behind a step; return the events that the next step must wait for.

        asking: those requests of the step that will ask for a tree.
        """
        states = {item.state.key: item.state for item in deciding}
        self._promised, self._asking = {}, [state for key, state in states.items() if key in asking]
        rows = [
            EnqueuedRequest(item.state.key, row, 1 + item.depth, outcome.routes[item])
            for row, item in enumerate(deciding)
            if item.state.key in asking and item.count == 1 and item in outcome.routes and not item.unresolved
        ]
        drafts = self._source.enqueue_draft(rows, outcome) if rows else EnqueuedDrafts()
        self._promised = {states[key]: tree for key, tree in drafts.trees.items()}
        unserved = [state for state in self._asking if state not in self._promised]
        self._unserved = {state: 1 + self._unserved.get(state, 0) for state in unserved}
        return drafts.read

    def take(self, items: Sequence[ScheduledRequest]) -> list[tuple[ScheduledRequest, TokenTree | None]]:
        """Return the promised trees of the next step's requests, whom nobody else is asked for any."""
        promised, self._promised = self._promised, {}
        found: list[tuple[ScheduledRequest, TokenTree | None]] = [
            (item, promised[item.state]) for item in items if item.decides and item.state in promised
        ]
        self._untold = dict.fromkeys(item.state.key for item, _ in found)
        return found

    def drop(self) -> None:
        """Forget what was promised: the next step is launched after all answers."""
        self._promised, self._unserved = {}, {}

    def untold(self) -> list[RequestKey]:
        """Return, once, the requests whose step was launched with a promised tree."""
        untold, self._untold = self._untold, {}
        return list(untold)

    def is_untold(self, key: RequestKey) -> bool:
        """Whether a request's step was launched with a promised tree, of which its drafter was not told."""
        return key in self._untold

    def tell_wait(self) -> None:
        """Tell the drafter, once, of the last wait for trees: a step has begun with them."""
        (keys, seconds), self._waited = self._waited, ([], 0.0)
        if keys:
            self._source.observe_wait(keys, seconds)

    def allow(self, allowed: bool) -> None:
        """Set whether drafters may hand over trees that only the device knows."""
        self._source.allow_device_trees(allowed)

    def allow_for(self, items: Sequence[ScheduledRequest]) -> None:
        """Allow them where a step of these rows takes whole trees."""
        self.allow(verifies_all_nodes(items))

    def read(self, items: Sequence[ScheduledRequest]) -> bool:
        """Have the host know those trees of a step, just launched, that only the device knew; whether there were any.

        Whatever fails here, the step goes on.
        """
        late = not_on_host(items)
        begun = time.perf_counter()
        copy_to_host(late)
        self._latency.read()
        try:
            self._waited = [item.state.key for item in late], time.perf_counter() - begun
            if not self._untold:
                self.tell_wait()
            self._weigh(late, items)
        except Exception:  # noqa: BLE001 - the step is under way already
            _log.exception("what the trees of a step are worth cannot be told")
        return bool(late)

    def _weigh(self, late: Sequence[ScheduledRequest], items: Sequence[ScheduledRequest]) -> None:
        """Compute the profitable nodes of device trees, which were taken whole although the optimizer sizes them."""
        sized = [item for item in late if item.tree is not None and item.state.draft.adaptive]
        if not sized:
            return
        drafted = [proposed_tree(item.state, item.tree) for item in sized if item.tree is not None]
        others = sum(item.num_rows for item in items) - sum(item.num_rows - 1 for item in sized)
        sizes = self._selector.sizes(
            drafted, requests=len(items), rows=others, tokens=len(items), waited=self._latency.seconds
        )
        for item, size in zip(sized, sizes, strict=True):
            item.profitable_nodes = size
