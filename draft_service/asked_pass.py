"""What a pass of the worker asks of proposers, and what it answers beside their trees."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple

from draft_service.question import Question
from draft_service.records import Reply
from draft_service.sessions import Slot
from slipstream_kernels.token_tree import TokenTree


class Asked(NamedTuple):
    """Slots that wait for what one proposer is asked."""

    question: Question
    slots: list[Slot]


class AskedPass(NamedTuple):
    """What a pass has to answer: replies that are there, and trees that are not yet."""

    replies: list[Reply]
    asked: list[Asked]

    def wait(self, until: float) -> bool:
        """Whether the proposers have what they are asked for; waits till then, time.perf_counter() in seconds."""
        return all(one.question.wait(until - perf_counter()) for one in self.asked)

    def on_device(self) -> list[Sequence[TokenTree | None]] | None:
        """The trees by proposer, all of which a device works on; None where that is not so."""
        trees = [trees for one in self.asked if (trees := one.question.on_device()) is not None]
        return trees if trees and len(trees) == len(self.asked) else None
