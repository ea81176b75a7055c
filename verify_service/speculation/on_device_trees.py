"""Trees that a device drafts behind a step under way, whichever state that leads to.

With them the next step is launched before drafters are told of the one that they were drafted behind:

    device  |------- pass n -------|-- draft --|------- pass n + 1 -------|-- draft --|
    host                           decide, launch n + 1
                                               read the trees, tell of n, enqueue the draft behind n + 1
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence

from slipstream_kernels.device_tree import DeviceTree
from slipstream_kernels.token_tree import TokenTree
from verify_service.core.draft_source import EnqueuedDrafts, EnqueuedRequest, OnDeviceDrafter, ReadEvents
from verify_service.core.request import RequestKey
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.core.step_result import DeviceStepResult
from verify_service.model_runner.device_trees import copy_to_host, not_on_host, read_tree, verifies_all_nodes
from verify_service.speculation.acceptance_model import proposed_tree
from verify_service.speculation.draft_latency import DraftLatency
from verify_service.speculation.node_selection import NodeSelector

_log = logging.getLogger(__name__)

_MOST = 0.75
"""Of the requests that will ask for a tree, how many must have one promised: the others decode a step plainly."""


class OnDeviceTrees:
    """Trees promised behind the newest step, and those in a step that the host does not know yet.

    `drafter` is who drafts on the device; without one nothing is ever promised.
    """

    def __init__(self, drafter: OnDeviceDrafter | None, latency: DraftLatency, selector: NodeSelector) -> None:
        self._drafter = drafter
        self._latency = latency
        self._selector = selector
        self._promised: dict[RequestKey, DeviceTree] = {}
        self._asking = 0
        self._untold: list[RequestKey] = []
        """Requests whose step was launched with a promised tree, of which their drafters do not know."""

    @property
    def is_possible(self) -> bool:
        """Whether anyone may draft on the device."""
        return self._drafter is not None

    @property
    def suffice(self) -> bool:
        """Whether the next step is best launched with the promised trees alone."""
        return bool(self._promised) and len(self._promised) >= _MOST * self._asking

    def enqueue(
        self, deciding: Sequence[ScheduledRequest], asking: Collection[RequestKey], outcome: DeviceStepResult
    ) -> ReadEvents:
        """Enqueue drafting behind a step; return the events that the next step must wait for.

        asking: those requests of the step that will ask for a tree.
        """
        self._promised, self._asking = {}, len(asking)
        rows = [
            EnqueuedRequest(item.state.key, row, 1 + item.depth, outcome.routes[item])
            for row, item in enumerate(deciding)
            if item.state.key in asking and item.count == 1 and item in outcome.routes and not item.unresolved
        ]
        drafts = EnqueuedDrafts()
        try:
            if rows and self._drafter is not None:
                drafts = self._drafter.enqueue_draft(rows, outcome)
        except Exception:  # noqa: BLE001 - a source that fails may cost speed and nothing else
            _log.exception("no tree was begun behind a step")
        self._promised.update(drafts.trees)
        return drafts.read

    def take(self, items: Sequence[ScheduledRequest]) -> list[tuple[ScheduledRequest, TokenTree | None]]:
        """Return the promised trees of the next step's requests, whom nobody else is asked for any.

        Where the step has prompts' rows too the host waits for the trees, so that it can choose among their nodes.
        """
        found = [(item, tree) for item in items if (tree := self._promised.get(item.state.key)) is not None]
        self._untold = [item.state.key for item, _ in found]
        self.drop()
        decodes = all(item.count == 1 for item in items)
        return [(item, tree if decodes else read_tree(tree)) for item, tree in found]

    def drop(self) -> None:
        """Forget what was promised: the next step takes none of it."""
        self._promised = {}

    def untold(self) -> list[RequestKey]:
        """Return, once, the requests whose step was launched with a promised tree."""
        untold, self._untold = self._untold, []
        return untold

    def allow(self, allowed: bool) -> None:
        """Set whether drafters may hand over trees that only the device knows."""
        if self._drafter is not None:
            self._drafter.allow_device_trees(allowed)

    def allow_for(self, items: Sequence[ScheduledRequest]) -> None:
        """Allow them where a step of these rows takes whole trees."""
        self.allow(verifies_all_nodes(items))

    def read(self, items: Sequence[ScheduledRequest], meanwhile: Callable[[], None] | None = None) -> bool:
        """Have the host know those trees of a step, just launched, that only the device knew; whether there were any.

        `meanwhile` is called before they are waited for, and takes less time than a draft. Whatever fails here, the
        step goes on.
        """
        late = not_on_host(items)
        try:
            if late and meanwhile is not None:
                meanwhile()
        except Exception:  # noqa: BLE001 - the step is under way already
            _log.exception("what was to be done while a device drafts failed")
        begun = time.perf_counter()
        copy_to_host(late)
        self._latency.read()
        try:
            if late and self._drafter is not None:
                self._drafter.observe_wait([item.state.key for item in late], time.perf_counter() - begun)
            self._weigh(late, items)
        except Exception:  # noqa: BLE001 - the step is under way already
            _log.exception("what the trees of a step are worth cannot be told")
        return bool(late)

    def _weigh(self, late: Sequence[ScheduledRequest], items: Sequence[ScheduledRequest]) -> None:
        """Compute the profitable nodes of device trees, which were taken whole although the optimizer sizes them."""
        sized = [item for item in late if item.tree is not None and item.state.adaptive]
        if not sized:
            return
        drafted = [proposed_tree(item.state, item.tree) for item in sized if item.tree is not None]
        others = sum(item.num_rows for item in items) - sum(item.num_rows - 1 for item in sized)
        parts = self._selector.choose(
            drafted, requests=len(items), rows=others, tokens=len(items), waited=self._latency.seconds
        )
        for item, part in zip(sized, parts, strict=True):
            item.profitable_nodes = 0 if part is None else len(part)
