"""Which hidden states steps capture, where they are kept, and who is told of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

from verify_service.core.draft_source import DraftSource, StateChunk, StateSpan
from verify_service.core.request import RequestKey
from verify_service.core.request_state import RequestState
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.engine.step_queue import Step
from verify_service.hidden_states.device_ring import RingSlice
from verify_service.hidden_states.rows import HiddenStateHistory, HiddenStateRows
from verify_service.hidden_states.store import HiddenStateStore
from verify_service.model_runner.base import ModelRunner
from verify_service.model_runner.captured_states import CapturedStates

_log = logging.getLogger(__name__)

LINGER_SECONDS = 30.0
"""How long states are captured that nobody asks for any more: a drafter that died is mostly back by then."""

States = Mapping[RequestKey, HiddenStateRows]


class HiddenStateCapture:
    """Captures what is asked for, from the next step on; nothing is captured or kept while nobody asks.

    While those who asked take nothing in nothing is captured either, but what is kept stays.

    All boundaries are captured together: what a step keeps does for everybody who asks.
    """

    def __init__(
        self,
        engine: ModelRunner[Any],
        store: HiddenStateStore,
        source: DraftSource,
        always: tuple[int, ...] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`source` asks for states and does not raise; `always` are boundaries that the operator wants kept anyhow."""
        self._engine = engine
        self._store = store
        self._source = source
        self._always = always
        self._clock = clock
        self._boundaries: tuple[int, ...] = ()
        self._captured: tuple[int, ...] = ()
        self._asked_at = float("-inf")
        self._held: dict[ScheduledRequest, HiddenStateRows] = {}
        self._held_single: dict[RequestState, tuple[int, int]] = {}
        """Of requests that decode and that no drafter hears of: the position and the row in `_step_states`."""
        self._step_states: CapturedStates | None = None
        self._untaken: Callable[[], States] = _nothing
        """Takes what the last step has captured, if that is yet to be done."""

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Boundaries whose states are kept, as settled last, ascending."""
        return self._boundaries

    def prepare(self) -> None:
        """Settle what the next step captures. To be called before each launch, and before its trees are waited for."""
        boundaries = self._settled()
        captured = boundaries if self._always or not self._source.paused() else ()
        if (boundaries, captured) != (self._boundaries, self._captured):
            self._take_all()
            kept, self._boundaries, self._captured = self._boundaries, boundaries, captured
            try:
                self._engine.capture(captured)
                if boundaries != kept:
                    self._store.lay_out(boundaries)
                _log.info("states are captured at boundaries %s", list(captured) or "none")
            except Exception:  # noqa: BLE001 - states may cost speed and nothing else
                _log.exception("states cannot be captured at boundaries %s", list(captured))

    def direct(self, items: Sequence[ScheduledRequest]) -> None:
        """Have the next step settle where its states go, of these items with their trees, once it is under way."""
        if self._captured:
            self._engine.direct(partial(self._routes, items))

    def take(
        self, step: Step, live: Sequence[ScheduledRequest], deciding: Sequence[ScheduledRequest]
    ) -> Callable[[], States]:
        """Keep what a decided step has captured, and tell of the states of prompts; before the step's tokens are known.

        `live` and `deciding` are those of its items whose requests go on. What is returned tells the states of each
        root and of the nodes accepted below it, which predicted what was decided; without prompts all is done as it is
        asked, or before anything changes that it depends on. Whatever fails here, the step goes on.
        """
        self._held.clear()
        self._held_single.clear()
        self._untaken = taken = cache(partial(self._taken, step, live, deciding))
        if len(deciding) < len(live) or any(item.count > 1 for item in live):
            self._take_all()
        return taken

    def _taken(self, step: Step, live: Sequence[ScheduledRequest], deciding: Sequence[ScheduledRequest]) -> States:
        try:
            return self._take(step, live, deciding)
        except Exception:  # noqa: BLE001 - states may cost speed and nothing else
            _log.exception("a step's states are lost")
            return {}

    def _take_all(self) -> None:
        """Nothing of a step is left to be taken."""
        untaken, self._untaken = self._untaken, _nothing
        untaken()

    def keep(self, only: RequestState | None = None) -> None:
        """Store what the last step taken has computed: of all requests that go on, or of one that is about to end.

        So drafters need not wait for it. To be called before any page changes hands.
        """
        self._take_all()
        try:
            self._keep_single(only)
            held = [item for item in self._held if only is None or item.state is only]
            taken = [(item.state, self._held.pop(item)) for item in held]
            layout = self._store.boundaries  # not the step's, where drafters have come or gone since
            self._store.write(
                [(state.kv.pages, rows) for state, rows in taken if not state.finished and rows.boundaries == layout]
            )
        except Exception:  # noqa: BLE001 - states may cost speed and nothing else
            _log.exception("a step's states are not kept")

    def history(self, state: RequestState) -> HiddenStateHistory:
        """What is kept of a request."""
        return _History(self._store, state)

    def _take(self, step: Step, live: Sequence[ScheduledRequest], deciding: Sequence[ScheduledRequest]) -> States:
        states = self._engine.states(step.launched)
        if states is None:
            return {}
        single, others = states.split(live, _is_told)
        keeps = states.boundaries == self._store.boundaries
        if keeps:
            self._step_states, self._held_single = states, single
        if not others:
            return {}
        captured = states.of(others)
        roots = {item.state.key: item.base - 1 for item in deciding}
        if keeps:
            at_once: list[tuple[Sequence[int], HiddenStateRows]] = []
            for item, features in captured:
                if roots.get(item.state.key) == features.first:
                    self._held[item] = features
                else:  # those in front of the root are history once what was decided is told
                    at_once.append((item.state.kv.pages, features))
            self._store.write(at_once)
        chunks: list[StateChunk] = []
        decided: dict[RequestKey, HiddenStateRows] = {}
        for item, features in captured:
            key = item.state.key
            if not _is_told(item):
                continue
            root = roots.get(key, features.end)
            if root > features.first:
                chunks.append(StateChunk(key, features.slice(features.first, root)))
            if key in roots:
                decided[key] = features.slice(root, features.end)
        if chunks:
            self._source.send_states(chunks)
        return decided

    def _keep_single(self, only: RequestState | None) -> None:
        """As `keep`, of requests that decode and that no drafter hears of."""
        states, held = self._step_states, self._held_single
        if states is None or states.boundaries != self._store.boundaries:
            return
        if only is None:
            kept = [(state.kv.pages, *at) for state, at in held.items() if not state.finished]
            held.clear()
        else:
            kept = [(only.kv.pages, *held.pop(only))] if only in held else []
        if kept:
            self._store.write_single(states.load(), kept)

    def _routes(self, items: Sequence[ScheduledRequest]) -> dict[ScheduledRequest, tuple[RingSlice, ...]]:
        drafted = [item for item in items if _is_told(item)]
        if not drafted:
            return {}
        wanted = [StateSpan(item.state.key, item.first, item.count + item.depth) for item in drafted]
        routes = self._source.reserve_ring(wanted, self._boundaries)
        return {item: spans for item, spans in zip(drafted, routes, strict=True) if spans}

    def _settled(self) -> tuple[int, ...]:
        """What is asked for, with what was asked for until recently: to begin anew costs all that is kept."""
        asked = {*self._always, *self._source.wanted_boundaries()}
        now = self._clock()
        if asked == set(self._boundaries):
            self._asked_at = now
            return self._boundaries
        if asked < set(self._boundaries) and now - self._asked_at <= LINGER_SECONDS:
            return self._boundaries
        self._asked_at = now
        return tuple(sorted(asked))


def _nothing() -> States:
    return {}


def _is_told(item: ScheduledRequest) -> bool:
    """Whether a drafter hears of each step of the item's request."""
    return bool(item.state.draft.proposer) and not item.state.draft.paused


class _History:
    """A request's part of the store."""

    __slots__ = ("_state", "_store")

    def __init__(self, store: HiddenStateStore, state: RequestState) -> None:
        self._store = store
        self._state = state

    def reach(self, end: int) -> int:
        kept = min(end, self._state.kv.num_written_tokens)
        return self._store.reach(self._state.kv.pages, kept) if kept == end else end

    def read(self, first: int, end: int) -> HiddenStateRows | None:
        return self._store.read(self._state.kv.pages, first, min(end, self._state.kv.num_written_tokens))
