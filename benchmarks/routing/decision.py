"""What routing takes of the gateway's processor, for a prompt of each length."""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from benchmarks.routing.machine import PAGE_SIZE
from gateway.core.request import ChoiceRequest, Sampling
from gateway.replicas.prompt_prefix import PromptPrefix
from gateway.replicas.replica_load import ReplicaLoad
from gateway.replicas.routing import Prefix
from slipstream.prefix_hash import hash_prompt

LENGTHS: Final = (500, 3000, 6000, 32000)
"""Prompt tokens."""

_FOREIGN: Final = 3000
_CALLS: Final = 50
_REPEATS: Final = 60
_VOCABULARY: Final = 128_000


class _Standing:
    """A replica that only stands there to be chosen."""

    def __init__(self) -> None:
        self.routing = ReplicaLoad()
        self.page_size = PAGE_SIZE
        self.max_running = 64
        self.load = 0


def decisions(count: int) -> list[dict[str, Any]]:
    """Processor time in microseconds, the least of many repeats, among `count` replicas that hold other prefixes, too.

    nowhere, half, all: how many of the replicas have the whole prompt cached. hashing: the prompt's hashes, which are
    computed where it is tokenised. bookkeeping: a request's coming and going at the replica chosen.
    """
    chance = random.Random(1)
    found: list[dict[str, Any]] = []
    for length in LENGTHS:
        tokens = array("I", (chance.randrange(_VOCABULARY) for _ in range(length)))
        request = ChoiceRequest(tokens, Sampling(), tenant="t", prompt_hashes=hash_prompt(tokens, PAGE_SIZE))
        names = PromptPrefix.of(request, PAGE_SIZE).names
        row: dict[str, Any] = {"prompt_tokens": length}
        for label, holders in (("nowhere", 0), ("half", count // 2), ("all", count)):
            replicas = [_Standing() for _ in range(count)]
            for index, replica in enumerate(replicas):
                foreign = [chance.randrange(1 << 64) for _ in range(_FOREIGN)]
                replica.routing.prefixes.take(1, foreign, (), snapshot=True)
                if index < holders:
                    replica.routing.prefixes.take(2, names, (), snapshot=False)
            row[label] = _least(partial(Prefix().rank, request, replicas))
        row["bookkeeping"] = _least(_coming_and_going(request))
        row["hashing"] = _least(partial(hash_prompt, tokens, PAGE_SIZE))
        found.append(row)
    return found


def _coming_and_going(request: ChoiceRequest) -> Callable[[], None]:
    load, prompt = ReplicaLoad(), PromptPrefix.of(request, PAGE_SIZE)

    def come_and_go() -> None:
        load.enter(1, prompt, 0.0)
        load.leave(1)

    return come_and_go


def _least(call: Callable[[], Any]) -> float:
    """Microseconds of this thread a call."""
    best = float("inf")
    for _ in range(_REPEATS):
        began = time.thread_time()
        for _ in range(_CALLS):
            call()
        best = min(best, time.thread_time() - began)
    return round(1e6 * best / _CALLS, 1)
