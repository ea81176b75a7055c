"""What rounds of a proposer take, measured before it is offered: verify weighs trees by that from the first step on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import perf_counter

import torch

from draft_service.proposers.base import CPU, DraftRequest, Opening, Proposer, Sampling, SessionRefusedError
from slipstream_kernels.draft_protocol.records import RoundCost
from slipstream_kernels.token_tree import TokenTree

_log = logging.getLogger(__name__)

REQUESTS = (1, 4, 16, 64)
SWEEPS, ROUNDS = 2, 3
"""Over the numbers of requests, and of rounds for each in a row. The quickest counts: the first may capture a graph,
and what else the machine does, as when services start, holds up some in a row.
"""
MOST_SECONDS = 0.3
"""Of all rounds, by which a further number of requests must be expected to be measured: others are extrapolated."""
NODES = 16
"""Of a level of all trees together, as verify asks for at first."""


def measure_rounds(
    proposer: Proposer, width: int = 0, clock: Callable[[], float] = perf_counter
) -> tuple[RoundCost, ...]:
    """Measure rounds of greedy sessions with one level and with all; only while no session is open.

    width: numbers of a token's states, for a proposer that reads them. Rounds that not all sessions get a tree of say
    nothing, and end it; what fails does, too, and is logged.
    """
    costs: dict[tuple[int, int], RoundCost] = {}
    begun = clock()
    for count in REQUESTS * SWEEPS:
        a_request = min((cost.seconds / cost.requests for cost in costs.values()), default=0.0)
        if clock() - begun + count * a_request > MOST_SECONDS:
            break
        try:
            measured = _measure(proposer, count, width, clock, begun + MOST_SECONDS)
        except SessionRefusedError:
            break
        except Exception:  # noqa: BLE001 (it may draft all the same)
            _log.exception("rounds of %s for %d requests cannot be measured", proposer.name, count)
            break
        if not measured:
            break
        for cost in measured:
            key = cost.requests, cost.levels
            costs[key] = min(costs.get(key, cost), cost)
    return tuple(costs.values())


def _measure(proposer: Proposer, count: int, width: int, clock: Callable[[], float], until: float) -> list[RoundCost]:
    """Rounds of so many requests; none where not all of them get trees. From `until` on each is measured once."""
    sessions = range(0, -count, -1)
    opened: list[int] = []
    costs: list[RoundCost] = []
    try:
        for session in sessions:
            proposer.open(session, Opening([0, 0], 1, sampling=Sampling(temperature=0.0)))
            opened.append(session)
        _give_states(proposer, opened, 0, width)
        length = 1
        for levels in sorted({1, proposer.max_depth}):
            seconds: list[float] = []
            nodes = min(proposer.max_nodes, 1 + levels * max(1, NODES // count))
            for _ in range(ROUNDS):
                asked = [DraftRequest(session, nodes, levels) for session in sessions]
                trees, took = _made(proposer, asked, clock)
                seconds.append(took)
                if not all(trees):
                    return []
                for session in sessions:
                    proposer.commit(session, [0])
                _give_states(proposer, opened, length, width)
                length += 1
                if clock() > until:
                    break
            if min(seconds) > 0.0:
                costs.append(RoundCost(count, levels, min(seconds)))
    finally:
        for session in opened:
            proposer.close(session)
    return costs


def _made(
    proposer: Proposer, asked: Sequence[DraftRequest], clock: Callable[[], float]
) -> tuple[Sequence[TokenTree | None], float]:
    """Trees, and what they took: the device alone where it drafts behind passes, beside whatever its host does."""
    at = clock()
    if not proposer.follows or proposer.state_device == CPU:
        trees: Sequence[TokenTree | None] = proposer.propose(asked)
        return trees, clock() - at
    future = proposer.begin(asked)
    at = clock()
    future.wait(MOST_SECONDS)
    took = clock() - at
    return future.result(), took


def _give_states(proposer: Proposer, sessions: Sequence[int], position: int, width: int) -> None:
    for session in sessions if width else ():
        proposer.take_features(session, position, torch.zeros(1, width, dtype=torch.bfloat16))
