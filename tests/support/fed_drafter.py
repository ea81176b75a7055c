"""A drafter that is fed with hidden states, played over a link: it checks that each position comes once, in order.

The state of position p is full of p; that at the other boundary of 100 + p.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from slipstream_kernels.draft_protocol.records import Commit, Extend, Gap
from verify_service.core.request import RequestKey
from verify_service.draft_link.attachment import Attachment
from verify_service.draft_link.draft_link import DraftLink
from verify_service.draft_link.records import AttachRequest, LinkFacts, Offer, Open
from verify_service.hidden_states.rows import HiddenStateRows

HIDDEN = 4
ROW = 2 * 2 * HIDDEN
"""Bytes of a position's states."""
FACTS = LinkFacts("model", "tokenizer", 100, HIDDEN, 2, 512, 64, feature_boundaries=(0, 1, 2, 3), most_boundaries=3)
KEY = RequestKey(1, 1)


def states(first: int, end: int, boundaries: tuple[int, ...] = (1, 3)) -> HiddenStateRows:
    rows = np.repeat(np.arange(first, end, dtype=np.uint16), HIDDEN).reshape(-1, HIDDEN)
    return HiddenStateRows(boundaries, first, np.concatenate([rows + 100 * i for i in range(len(boundaries))], axis=1))


class Kept:
    """A request's history from one position on."""

    def __init__(self, first: int) -> None:
        self.first = first

    def reach(self, end: int) -> int:
        return min(self.first, end)

    def read(self, first: int, end: int) -> HiddenStateRows | None:
        return states(max(first, self.first), end) if self.first < end else None


class Peer:
    """A drafter that reads when told to, and what it has by then."""

    def __init__(self, link: DraftLink, *offers: Offer) -> None:
        self.link = link
        request = AttachRequest(1, 1, "", offers, "", 0, ("grpc",), "d", "", 1)
        self.attachment: Attachment = link.start(link.attach(request, loopback=True).epoch, lambda: None)
        self.tokens: list[int] = []
        self.rows: list[int] = []
        self.first = 0
        self.kinds: list[str] = []

    def read(self, messages: int = 1000) -> list[str]:
        """Take in messages and check that each continues what came before; returns the kinds of their records."""
        kinds: list[str] = []
        for _ in range(messages):
            for record in self.link.take(self.attachment):
                kinds.append(type(record).__name__)
                self._apply(record)
        return kinds

    def _apply(self, record: Any) -> None:
        match record:
            case Open():
                self.tokens, self.rows, self.first = list(record.token_ids), [], record.cached_length
                self.stamp = record.stamp
            case Extend():
                self._add(record.first_position, record.hidden_states)
                assert record.stamp.generation == self.stamp.generation
            case Commit():
                if record.hidden_states is not None:
                    assert len(record.hidden_states) == len(record.token_ids)
                    self._add(len(self.tokens) - 1, record.hidden_states)
                self.tokens += record.token_ids
            case Gap():
                self.stamp = record.stamp

    def _add(self, first: int, rows: Any) -> None:
        assert first == self.first + len(self.rows)
        assert rows[:, 0].tolist() == list(range(100 + first, 100 + first + len(rows)))  # boundary 3 comes first
        assert rows[:, HIDDEN].tolist() == list(range(first, first + len(rows)))
        self.rows += rows[:, HIDDEN].tolist()

    @property
    def has(self) -> tuple[int, int]:
        """First position and that behind the last, of the states it has."""
        return self.first, self.first + len(self.rows)
