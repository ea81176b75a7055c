"""Which tenant is served next, so that each gets its weighted share of the rows computed.

Weighted fair queueing by virtual token counters (Sheng et al., "Fairness in Serving Large Language Models",
arXiv 2401.00588).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from verify_service.core.request_state import RequestState

MAX_REMEMBERED = 4096
"""Tenants without requests whose counters are kept."""


@dataclass(slots=True, eq=False)
class Tenant:
    """A tenant that has requests here: `waiting` ones in order, and how many `running`.

    `served` counts rows computed for it over its weight. `turn`, `decode_credit` and `prompt_credit` belong to
    `pass_share`: the ticket served last and rows saved up, None for as many as may be.
    """

    name: str
    weight: float
    served: float
    waiting: deque[RequestState] = field(default_factory=deque)
    running: int = 0
    turn: int = -1
    decode_credit: float = 0.0
    prompt_credit: float | None = None

    @property
    def places(self) -> int:
        """Requests that run or wait."""
        return self.running + len(self.waiting)


class FairShare:
    """Tenants with requests, their queues and counters.

    The tenant of the lowest counter is served next. One that comes back is lifted to the lowest counter of those here,
    so that idleness earns nothing; one whose counter is ahead finds it as it was. Once nobody is here, all counters are
    forgotten. A tenant's weight is that of its latest request.
    """

    def __init__(self) -> None:
        self._tenants: dict[str, Tenant] = {}
        self._ahead: dict[str, float] = {}
        """Counters of tenants that left while others were behind them."""
        self.num_waiting = 0

    def __len__(self) -> int:
        """Tenants with requests."""
        return len(self._tenants)

    def __iter__(self) -> Iterator[Tenant]:
        return iter(self._tenants.values())

    def of(self, state: RequestState) -> Tenant:
        """The tenant of a request that is here."""
        return self._tenants[state.parameters.tenant]

    def find(self, name: str) -> Tenant | None:
        """The tenant of that name, if it has requests."""
        return self._tenants.get(name)

    def enter(self, state: RequestState) -> None:
        """Queue a request behind all others of its tenant."""
        tenant = self._tenants.get(state.parameters.tenant)
        if tenant is None:
            tenant = self._tenants[state.parameters.tenant] = self._returning(state.parameters.tenant)
        tenant.weight = state.request.weight
        tenant.waiting.append(state)
        self.num_waiting += 1

    def start(self, tenant: Tenant) -> RequestState:
        """Take the head of a tenant's queue, which runs from here on."""
        self.num_waiting -= 1
        tenant.running += 1
        return tenant.waiting.popleft()

    def requeue(self, state: RequestState) -> None:
        """A running request waits again, ahead of all others of its tenant."""
        tenant = self.of(state)
        tenant.running -= 1
        tenant.waiting.appendleft(state)
        self.num_waiting += 1

    def leave(self, state: RequestState, *, waiting: bool) -> None:
        """A request is over."""
        tenant = self.of(state)
        if waiting:
            tenant.waiting.remove(state)
            self.num_waiting -= 1
        else:
            tenant.running -= 1
        if not tenant.places:
            self._forget(tenant)

    def charge(self, tenant: Tenant, rows: int) -> None:
        """Rows were computed for a tenant; they count only beside others."""
        if len(self._tenants) > 1:
            tenant.served += rows / tenant.weight

    def by_service(self) -> list[Tenant]:
        """All tenants, the one to be served next first."""
        return sorted(self._tenants.values(), key=lambda tenant: tenant.served)

    def _returning(self, name: str) -> Tenant:
        floor = min((tenant.served for tenant in self._tenants.values()), default=0.0)
        return Tenant(name, 1.0, max(floor, self._ahead.pop(name, floor)))

    def _forget(self, tenant: Tenant) -> None:
        del self._tenants[tenant.name]
        if not self._tenants:
            self._ahead.clear()
            return
        floor = min(each.served for each in self._tenants.values())
        if tenant.served > floor:
            self._ahead[tenant.name] = tenant.served
        if len(self._ahead) > MAX_REMEMBERED:
            ahead = sorted(self._ahead.items(), key=lambda entry: entry[1])[MAX_REMEMBERED // 2 :]
            self._ahead = {name: served for name, served in ahead if served > floor}


def gives_way(over: float, over_weight: float, under: float, under_weight: float) -> bool:
    """Whether a holding of `over` is larger than a fair one beside `under`; both as they are after something moved.

    What moved so is not moved back by the same rule.
    """
    return over / over_weight >= under / under_weight


def displaceable(tenants: Iterable[Tenant], newcomer: str, places: int, weight: float) -> RequestState | None:
    """The waiting request that gives its place to a newcomer, whose tenant holds `places` now; None for none.

    That is the latest of the tenant which holds most by its weight without it, if that is no less than the newcomer's
    then holds. A request that has started or has output never gives way.
    """
    others = sorted(
        (tenant for tenant in tenants if tenant.name != newcomer),
        key=lambda tenant: (tenant.places - 1) / tenant.weight,
        reverse=True,
    )
    for tenant in others:
        if not gives_way(tenant.places - 1, tenant.weight, places + 1, weight):
            return None
        for state in reversed(tenant.waiting):
            if not (state.started or state.request.output_token_ids):
                return state
    return None


def split(room: float, demands: list[float], weights: list[float]) -> list[float]:
    """Weighted max-min shares of `room`: nobody gets more than its demand, and what one leaves goes to the others."""
    shares = [0.0] * len(demands)
    left, weight = room, sum(weights)
    for index in sorted(range(len(demands)), key=lambda index: demands[index] / weights[index]):
        shares[index] = min(demands[index], left * weights[index] / weight)
        left -= shares[index]
        weight = max(weight - weights[index], 1e-12)
    return shares


def split_whole(room: int, demands: list[int], weights: list[float]) -> list[int]:
    """The same in whole numbers: what rounding leaves goes to the first that lack any."""
    shares = [int(share + 1e-9) for share in split(room, [float(each) for each in demands], weights)]
    left = min(room, sum(demands)) - sum(shares)
    for index, demand in enumerate(demands):
        if left > 0 and shares[index] < demand:
            shares[index] += 1
            left -= 1
    return shares
