"""The requests of one attachment, by slot, and what their stamps allow.

Records may be stale, duplicated or missing. A record that does not fit is dropped and counted; a hole is answered
with Resume, after which the slot waits for an Open.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Any

from draft_service.proposers.base import DraftRequest, FollowRequest, Proposer, SessionRefusedError
from draft_service.proposers.hidden_states import placed
from draft_service.protocol.records import Close, Open, Record
from slipstream.rpc.logs import with_fields
from slipstream_kernels.draft_protocol.proposer_host import EnqueueRequest
from slipstream_kernels.draft_protocol.records import Commit, Extend, Gap, Nack, Reply, Resume, Stamp
from slipstream_kernels.token_tree import TokenTree

if TYPE_CHECKING:
    import torch

_log = logging.getLogger(__name__)

MOST_TOKENS = 2**31
"""Token ids of any target, which proposers keep as int32."""


@dataclass(slots=True)
class SessionSlot:
    """One slot of the attachment.

    stamp: the newest state known. session: number given to the proposer, 0 while there is none (awaiting an Open
    after Resume, refused or failed). wants_tree: that state has not been answered yet. handed: verify has its tree from
    the device, and no answer is needed. featured: the first position
    whose hidden states have not come. request_id: how logs name the request.
    """

    stamp: Stamp
    proposer: Proposer | None = None
    session: int = 0
    max_nodes: int = 0
    max_depth: int = 0
    wants_tree: bool = False
    handed: bool = False
    awaits_open: bool = False
    featured: int = 0
    request_id: str = ""


@dataclass(slots=True)
class SessionTable:
    """All slots of one attachment. `numbers` yields session numbers that are unique in the process.

    `hidden_size` is the target's. `partial` counts sessions that began without states which their proposer wanted.
    `deadline` is for how many seconds verify waits for a tree at most. Tokens that proposers get are below
    `vocab_size`: most of them use tokens as indices.
    """

    epoch: int
    num_slots: int
    proposers: Sequence[Proposer]
    numbers: count[int]
    hidden_size: int = 0
    partial: int = 0
    deadline: float = inf
    vocab_size: int = MOST_TOKENS
    dropped: Counter[str] = field(default_factory=Counter)
    _slots: dict[int, SessionSlot] = field(default_factory=dict)
    _sessions: int = 0

    def __len__(self) -> int:
        """Number of sessions that a proposer holds."""
        return self._sessions

    def apply(self, record: Record) -> Reply | None:
        """Take one record in. Returns what must be answered at once, if anything."""
        stamp = record.stamp
        if stamp.epoch != self.epoch:
            self.dropped["epoch"] += 1
            return None
        slot = self._slots.get(stamp.slot)
        if slot is not None and stamp.generation < slot.stamp.generation:
            self.dropped["generation"] += 1
            return None
        if slot is None and not isinstance(record, Open) and stamp.slot >= self.num_slots:
            self.dropped["slot"] += 1
            return None
        if isinstance(record, Commit):
            return self._commit(record, slot)
        match record:
            case Open():
                return self._open(record, slot)
            case Extend():
                return self._extend(record, slot)
            case Gap():
                return self._resume(stamp, slot)
            case Close():
                if slot is not None:
                    self._forget(slot)
                    del self._slots[stamp.slot]
                return None

    def sources_of(self, slot: SessionSlot, tree: TokenTree) -> tuple[int, ...]:
        """Which proposer each node is counted for, by its place among those offered; empty: the slot's own.

        A name that none of them has stands for the slot's own proposer.
        """
        if not tree.sources or len(tree.sources) != len(tree) or slot.proposer is None:
            return ()
        places = {proposer.name: index for index, proposer in enumerate(self.proposers)}
        own = places[slot.proposer.name]
        return tuple(places.get(name, own) for name in tree.sources)

    def wanted(self, waited: float = 0.0) -> dict[Proposer, list[tuple[SessionSlot, DraftRequest]]]:
        """States that await a tree, by proposer; limits are the lower of verify's and the proposer's.

        waited: seconds for which verify has waited already.
        """
        left = max(0.0, self.deadline - waited)
        wanted: dict[Proposer, list[tuple[SessionSlot, DraftRequest]]] = {}
        for slot in self._slots.values():
            proposer = slot.proposer
            if slot.wants_tree and proposer is not None:
                requests = wanted.get(proposer)
                if requests is None:
                    requests = wanted[proposer] = []
                nodes, depth = min(slot.max_nodes, proposer.max_nodes), min(slot.max_depth, proposer.max_depth)
                requests.append((slot, DraftRequest(slot.session, nodes, depth, left)))
        return wanted

    def followed(self, values: Sequence[EnqueueRequest]) -> dict[Proposer, list[FollowRequest]]:
        """Sessions that a pass under way goes on with, by proposer: those that are at the state it began with."""
        asked: dict[Proposer, list[FollowRequest]] = {}
        for stamp, row, rows, place, max_nodes, max_depth in values:
            slot = self._slots.get(stamp.slot)
            if slot is None or slot.proposer is None or slot.stamp != stamp or slot.wants_tree:
                continue
            proposer = slot.proposer
            requests = asked.get(proposer)
            if requests is None:
                requests = asked[proposer] = []
            nodes, depth = min(max_nodes, proposer.max_nodes), min(max_depth, proposer.max_depth)
            requests.append(FollowRequest(slot.session, row, rows, place, nodes, depth))
        return asked

    def refuse(self, slot: SessionSlot, reason: str) -> Nack:
        """No more trees for this slot until the next Open."""
        self._forget(slot)
        return Nack(slot.stamp, reason)

    def close_all(self) -> None:
        """The attachment is over."""
        for slot in self._slots.values():
            self._forget(slot)
        self._slots.clear()

    def _open(self, record: Open, slot: SessionSlot | None) -> Reply | None:
        if slot is not None:
            self._forget(slot)
        slot = self._slots[record.stamp.slot] = SessionSlot(record.stamp, request_id=record.request_id)
        fault = self._fault_of(record)
        if fault:
            del self._slots[record.stamp.slot]
            return Nack(record.stamp, fault)
        proposer, session = self.proposers[record.proposer], next(self.numbers)
        try:
            proposer.open(session, record.opening)
        except SessionRefusedError as refusal:
            return self.refuse(slot, str(refusal))
        except Exception:  # noqa: BLE001 (a third party's code; one request loses its trees, nothing else)
            _log.exception("proposer %s failed to open a session", proposer.name, extra=_named(slot))
            return self.refuse(slot, f"proposer {proposer.name} failed")
        slot.proposer, slot.session, slot.featured = proposer, session, record.opening.cached_length
        self._sessions += 1
        _log.debug("session %d: %s drafts for slot %d", session, proposer.name, record.stamp.slot, extra=_named(slot))
        if proposer.feature_boundaries and slot.featured:
            self.partial += 1
            text = "proposer %s begins a session without the states of %d tokens"
            _log.debug(text, proposer.name, slot.featured, extra=_named(slot))
        self._want(slot, record)
        return None

    def _commit(self, record: Commit[torch.Tensor], slot: SessionSlot | None) -> Reply | None:
        stamp = record.stamp
        if slot is None or stamp.generation > slot.stamp.generation:
            return self._resume(stamp, slot)
        if slot.proposer is None:
            slot.stamp = stamp
            self.dropped["awaits open" if slot.awaits_open else "refused"] += 1
            return None
        if stamp.base_length <= slot.stamp.base_length:
            self.dropped["stale commit"] += 1
            return None
        follows = stamp.base_length == slot.stamp.base_length + len(record.token_ids)
        if not follows or stamp.root_token != record.token_ids[-1]:
            return self._resume(stamp, slot)
        if fault := self._beyond_vocabulary(record.token_ids):
            return self.refuse(slot, fault)
        try:
            slot.proposer.commit(slot.session, record.token_ids)
        except Exception:  # noqa: BLE001 (as in _open)
            _log.exception("proposer %s failed to take tokens", slot.proposer.name, extra=_named(slot))
            return self.refuse(slot, f"proposer {slot.proposer.name} failed")
        slot.stamp = stamp
        self._want(slot, record)
        if record.hidden_states is None:
            return None
        return self._take_states(
            slot, slot.proposer, stamp.base_length - len(record.token_ids) - 1, record.hidden_states
        )

    def _extend(self, record: Extend[torch.Tensor], slot: SessionSlot | None) -> Reply | None:
        if slot is None or record.stamp.generation > slot.stamp.generation:
            return self._resume(record.stamp, slot)
        if slot.proposer is None or record.hidden_states is None:
            self.dropped["awaits open" if slot.awaits_open else "refused"] += 1
            return None
        return self._take_states(slot, slot.proposer, record.first_position, record.hidden_states)

    def _take_states(self, slot: SessionSlot, proposer: Proposer, first: int, states: torch.Tensor) -> Reply | None:
        """Hand on those that have not come yet. What leaves a hole, or runs ahead of the tokens, is a fault."""
        rows, columns = states.shape
        end = first + rows
        if columns != len(proposer.feature_boundaries) * self.hidden_size:
            return self.refuse(slot, f"states of {columns} numbers are not what {proposer.name} asked for")
        if end <= slot.featured:
            self.dropped["stale states"] += 1
            return None
        if first > slot.featured or end >= slot.stamp.base_length:
            return self._resume(slot.stamp, slot)
        try:
            fresh = states[slot.featured - first :] if first < slot.featured else states
            proposer.take_features(slot.session, slot.featured, placed(fresh, proposer))
        except Exception:  # noqa: BLE001 (as in _open)
            _log.exception("proposer %s failed to take states", proposer.name, extra=_named(slot))
            return self.refuse(slot, f"proposer {proposer.name} failed")
        slot.featured = end
        return None

    def _resume(self, stamp: Stamp, slot: SessionSlot | None) -> Resume:
        have_length = 0
        if slot is not None:
            if slot.session and stamp.generation == slot.stamp.generation:
                have_length = slot.stamp.base_length
            self._forget(slot)
        self._slots[stamp.slot] = SessionSlot(stamp, awaits_open=True)
        return Resume(stamp, have_length)

    def _fault_of(self, record: Open) -> str:
        tokens = record.opening.token_ids
        if not 0 <= record.stamp.slot < self.num_slots:
            return f"slot {record.stamp.slot} is outside 0 to {self.num_slots - 1}"
        if record.proposer >= len(self.proposers):
            return f"proposer {record.proposer} was not offered"
        if not 1 <= record.opening.prompt_length <= len(tokens):
            return f"prompt_length {record.opening.prompt_length} does not fit {len(tokens)} tokens"
        if record.stamp.base_length != len(tokens) or record.stamp.root_token != tokens[-1]:
            return "the stamp does not fit the tokens"
        return self._beyond_vocabulary(tokens)

    def _beyond_vocabulary(self, tokens: Sequence[int]) -> str:
        largest = max(tokens)
        return f"token {largest} is outside the vocabulary of {self.vocab_size}" if largest >= self.vocab_size else ""

    def _forget(self, slot: SessionSlot) -> None:
        proposer, session = slot.proposer, slot.session
        slot.proposer, slot.session, slot.wants_tree = None, 0, False
        if proposer is None:
            return
        self._sessions -= 1
        _log.debug("session %d: over", session, extra=_named(slot))
        try:
            proposer.close(session)
        except Exception:  # noqa: BLE001 (as in _open)
            _log.exception("proposer %s failed to close a session", proposer.name, extra=_named(slot))

    @staticmethod
    def _want(slot: SessionSlot, record: Open | Commit[torch.Tensor]) -> None:
        slot.max_nodes, slot.max_depth = record.max_nodes, record.max_depth
        slot.wants_tree = record.max_nodes > 1 and record.max_depth > 0
        slot.handed = isinstance(record, Commit) and record.handed


def _named(slot: SessionSlot) -> dict[str, Any]:
    """The fields of a log line about a slot."""
    return with_fields(session=slot.session or None, request_id=slot.request_id or None)
