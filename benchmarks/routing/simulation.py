"""Several verify services in virtual time behind the gateway's own routing policy."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence

from benchmarks.routing.figures import Figures
from benchmarks.routing.machine import Machine, MachineCosts, Request
from gateway.config import RoutingName
from gateway.replicas.routing import Random, RoutingPolicy, policy_named


def simulate(requests: Sequence[Request], policy: RoutingPolicy, costs: MachineCosts, machines: int) -> Figures:
    """Run all requests to their ends. The first third fills the caches and is not counted."""
    clock = _Clock()
    replicas = [Machine(costs, clock.at) for _ in range(machines)]
    for request in requests:
        clock.at(request.arrival, _arrival(request, policy, replicas, clock))
    clock.run()
    return _figures(requests)


def _figures(requests: Sequence[Request]) -> Figures:
    """Of all but the first third."""
    counted = requests[len(requests) // 3 :]
    times = [request.first_token_at - request.arrival for request in counted]
    prompt_tokens = sum(len(request.prompt) for request in counted)
    return Figures.of(times, sum(request.cached_tokens for request in counted) / prompt_tokens)


def simulate_loop(
    requests: Sequence[Request], policy: RoutingPolicy, costs: MachineCosts, machines: int, clients: int
) -> Figures:
    """Run all requests, each of which comes as another one ends, so many at a time; see `simulate` otherwise."""
    clock = _Clock()
    todo = iter(requests)

    def come() -> None:
        if (request := next(todo, None)) is not None:
            request.arrival = clock.now
            _arrival(request, policy, replicas, clock)()

    replicas = [Machine(costs, clock.at, come) for _ in range(machines)]
    for _ in range(clients):
        clock.at(0.0, come)
    clock.run()
    return _figures(requests)


def policy_of(name: RoutingName, seed: int) -> RoutingPolicy:
    """The gateway's policy; `random` with a seed, so that runs repeat."""
    return Random(seed) if name == "random" else policy_named(name)


def _arrival(request: Request, policy: RoutingPolicy, replicas: list[Machine], clock: _Clock) -> Callable[[], None]:
    def arrive() -> None:
        ranked, prompt = policy.rank(request.choice, replicas)
        ranked[0].submit(request, prompt, clock.now)

    return arrive


class _Clock:
    """Virtual time: what is to happen, in order."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def at(self, moment: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (moment, next(self._numbers), action))

    def run(self) -> None:
        while self._events:
            self.now, _, action = heapq.heappop(self._events)
            action()
