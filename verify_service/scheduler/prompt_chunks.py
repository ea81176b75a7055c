"""How the prompt rows of one step are shared: among tenants by service received, among one tenant's prompts by age."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from verify_service.core.request_state import RequestState
from verify_service.scheduler.pass_share import Demand

LONG_CHUNKS = 2
"""A prompt that has more chunks than these before it leaves a part of each to others."""
LEFT_PART, SLICE_PART = 4, 4
"""Which part of a chunk that is, and which one goes to one tenant before the next is looked for."""


@dataclass(slots=True)
class PromptChunks:
    """Rows of a step's chunk that are `left`, and how many each prompt was given.

    `prompts` are those of each tenant that are under way, in order of arrival.
    """

    left: int
    counts: dict[RequestState, int] = field(default_factory=dict)
    prompts: dict[str, list[RequestState]] = field(default_factory=dict)
    _long: int = field(init=False)

    def __post_init__(self) -> None:
        self._long = LONG_CHUNKS * self.left

    def order(self, tenant: str, rows: int) -> tuple[list[tuple[RequestState, int]], list[tuple[RequestState, int]]]:
        """A tenant's prompts with the most that each may get of `rows`: before others of its start, and after.

        The oldest gets all it needs, unless it is long: then short ones, which are not to wait for its end, get a
        part. What nobody needs is the oldest one's again.
        """
        prompts = self.prompts.get(tenant, [])
        if not prompts or self._missing(prompts[0]) <= self._long:
            return [(state, rows) for state in prompts], []
        oldest = prompts[0]
        short = [(state, rows) for state in prompts[1:] if self._missing(state) <= self._long]
        long = [(state, rows) for state in prompts[1:] if self._missing(state) > self._long]
        return [(oldest, rows - rows // LEFT_PART), *short], [(oldest, rows), *long]

    def give(self, order: Sequence[tuple[RequestState, int]], rows: int) -> int:
        """Give prompts what they need of `rows`, in order; returns what is left of these."""
        for state, most in order:
            count = min(self._missing(state), most, rows, self.left)
            if count > 0:
                self.counts[state] = self.counts.get(state, 0) + count
                self.left -= count
                rows -= count
        return rows

    def _missing(self, state: RequestState) -> int:
        return state.num_unscheduled_tokens - self.counts.get(state, 0)


def shares_of_chunk(demands: Sequence[Demand], rows: int, limits: Mapping[str, int]) -> list[int]:
    """Rows of a chunk for each tenant: slice by slice to whoever was served least, as far as `limits` go."""
    wanted = [min(each.prompt_rows, limits.get(each.tenant.name, each.prompt_rows)) for each in demands]
    shares = [0] * len(demands)
    piece = max(1, rows // SLICE_PART)
    heap = [(each.tenant.served, index) for index, each in enumerate(demands) if wanted[index]]
    heapify(heap)
    while rows and heap:
        served, index = heappop(heap)
        count = min(piece, rows, wanted[index] - shares[index])
        shares[index] += count
        rows -= count
        if shares[index] < wanted[index]:
            heappush(heap, (served + count / demands[index].tenant.weight, index))
    return shares
