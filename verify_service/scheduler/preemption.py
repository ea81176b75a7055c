"""Which running requests make way where lines of the batch or pages lack, so that tenants hold their shares."""

from __future__ import annotations

from collections.abc import Sequence

from verify_service.core.request_state import RequestState
from verify_service.scheduler.fair_share import FairShare, Tenant, gives_way
from verify_service.scheduler.kv_cache_manager import KVCacheManager


class Preemption:
    """Chooses among `running` requests, in the order of arrival.

    The first of them never makes way, unless it is alone: so somebody always comes to an end.
    """

    __slots__ = ("_memory", "_page_size", "_tenants")

    def __init__(self, tenants: FairShare, memory: KVCacheManager, page_size: int) -> None:
        self._tenants = tenants
        self._memory = memory
        self._page_size = page_size

    def heaviest(self, running: Sequence[RequestState]) -> RequestState:
        """Who makes way where pages lack: the latest arrival of the tenant with most pages for its weight."""
        if len(self._tenants) <= 1:
            return running[-1]
        pages = self._pages(running)
        return max(
            running[1:] or running,
            key=lambda state: (
                pages[state.parameters.tenant] / self._tenants.of(state).weight,
                state.parameters.arrival_number,
            ),
        )

    def givers_of_a_line(self, running: Sequence[RequestState], tenant: Tenant) -> list[RequestState]:
        """The latest arrival of the tenant that has most lines for its weight without it; none if that is not fair."""
        latest = {state.parameters.tenant: state for state in running[1:] if state.parameters.tenant != tenant.name}
        others = [self._tenants.of(state) for state in latest.values()]
        over = max(others, key=lambda each: (each.running - 1) / each.weight, default=None)
        if over is None or not gives_way(over.running - 1, over.weight, tenant.running + 1, tenant.weight):
            return []
        return [latest[over.name]]

    def givers_of_pages(
        self, running: Sequence[RequestState], tenant: Tenant, state: RequestState
    ) -> list[RequestState]:
        """The latest arrivals, as many as it takes, of the tenant with most pages for its weight that can give them.

        They give way to `state`, which waits. None where nobody can, or it would not be fair.
        """
        pages = self._pages(running)
        needed = -(-len(state.tokens) // self._page_size)
        others = [each for each in self._tenants if each is not tenant and pages[each.name]]
        for over in sorted(others, key=lambda each: pages[each.name] / each.weight, reverse=True):
            missing, left, givers = needed - self._memory.available, pages[over.name], list[RequestState]()
            for victim in reversed(running[1:]):
                if missing > 0 and victim.parameters.tenant == over.name:
                    missing -= len(victim.kv.pages)
                    left -= len(victim.kv.pages)
                    givers.append(victim)
            if missing <= 0 and gives_way(left, over.weight, pages[tenant.name] + needed, tenant.weight):
                return givers
        return []

    def _pages(self, running: Sequence[RequestState]) -> dict[str, int]:
        """Pages of each tenant's running requests; those that several share count for each."""
        pages = {tenant.name: 0 for tenant in self._tenants}
        for state in running:
            pages[state.parameters.tenant] += len(state.kv.pages)
        return pages
