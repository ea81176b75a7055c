"""How much one tenant's requests may add to the passes of another's.

A pass takes as long as all its rows together, so that a tenant with many rows slows the others' streams. While requests
of several tenants run, a pass may take `SLOWDOWN` times as long as one in which each tenant had a fair share beside the
tenant that needs least. What a tenant has beyond that takes turns over several passes, and trees are cut; rows that
nobody else needs are anybody's. No token depends on either.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

from verify_service.core.request_state import RequestState
from verify_service.core.step_time_model import StepTimeModel
from verify_service.scheduler.fair_share import Tenant, split, split_whole

SLOWDOWN = 1.5
"""Times the pass of fair shares that a pass of several tenants may take."""
BURST_CHUNKS = 2
"""Prefill chunks of prompts that a tenant may have saved up, as one that comes has: short bursts are for free."""
PROMPT_SLICES = 8
"""Of a prefill chunk, that a tenant which has used its savings saves up for one of."""
MOST_HELD_BACK = 8
"""Passes in a row for which requests that await trees may be held back."""
_DETAIL = 1e-6


class Load(NamedTuple):
    """What a tenant has for a pass: requests that decode, and rows besides of prompts and of drafted nodes."""

    weight: float
    requests: int
    rows: int


@dataclass(slots=True)
class Demand:
    """What a tenant has for the next pass: requests that decode, in order of arrival, and rows of prompts."""

    tenant: Tenant
    decoding: list[RequestState] = field(default_factory=list)
    prompt_rows: int = 0

    @property
    def load(self) -> Load:
        return Load(self.tenant.weight, len(self.decoding), self.prompt_rows)


@dataclass(frozen=True, slots=True)
class Turns:
    """Requests whose row has to wait for a later pass, and the prompt rows of tenants that may not have all."""

    left_out: frozenset[RequestState] = frozenset()
    prompt_rows: dict[str, int] = field(default_factory=dict)


ALL = Turns()


class PassShare:
    """Bounds passes by what they are measured to cost, waits for trees included. Used by the loop's thread."""

    def __init__(self, costs: StepTimeModel, chunk: int) -> None:
        """chunk: prompt rows of a pass, over all requests."""
        self._costs = costs
        self._slice = max(1, chunk // PROMPT_SLICES)
        self._burst = float(BURST_CHUNKS * chunk)
        self._debt = 0.0
        """Seconds of waits for trees by which passes of late were longer than they may be."""
        self._held_back = 0
        self.cut_nodes = 0
        """Drafted nodes left out of passes so far."""

    def turns(self, demands: Sequence[Demand]) -> Turns:
        """Whose rows the next pass has, of several tenants'. To be called once a pass."""
        loads = [demand.load for demand in demands]
        if self._debt <= 0.0 and len(set(loads)) <= 1 and all(each.tenant.prompt_credit is None for each in demands):
            return ALL
        allowed = self._allowed(loads, drafted=False)
        self._debt = min(self._debt, MOST_HELD_BACK * allowed)
        left_out = self._hold_back(demands)
        if left_out:
            loads = [
                Load(load.weight, sum(state not in left_out for state in demand.decoding), load.rows)
                for demand, load in zip(demands, loads, strict=True)
            ]
        requests, rows = sum(load.requests for load in loads), sum(load.rows for load in loads)
        seconds = self._seconds(requests, rows)
        self._debt = max(0.0, self._debt - max(0.0, allowed - seconds))
        most = self._most_rows(requests, 2 * (requests + rows), allowed)
        wanted = [float(load.requests + load.rows) for load in loads]
        weights = [load.weight for load in loads]
        shares, whole_weight = split(most, wanted, weights), sum(weights)
        held_back, prompt_rows = frozenset(left_out), dict[str, int]()
        for demand, load, share in zip(demands, loads, shares, strict=True):
            tenant = demand.tenant
            if share < load.requests + load.rows - _DETAIL:
                prompt_rows[tenant.name] = self._save_up(tenant, load, share)
                left_out |= self._take_turns(demand, load, share, left_out)
            else:
                if tenant.prompt_credit is not None:
                    unused = most * load.weight / whole_weight - share
                    tenant.prompt_credit = min(self._burst, tenant.prompt_credit + max(0.0, unused))
        if not any(prompt_rows.get(each.tenant.name, each.prompt_rows) for each in demands):
            decoding = [state for each in demands for state in each.decoding if state not in held_back]
            if left_out.issuperset(decoding):
                self._lend(demands, held_back, left_out, prompt_rows)
        return Turns(frozenset(left_out), prompt_rows) if left_out or prompt_rows else ALL

    def nodes(self, present: Sequence[Load], wanted: Sequence[int], room: int) -> list[int] | None:
        """Drafted nodes that each tenant may have in a pass, beside what is `present`; None where all that they want.

        room: nodes of one pass over all requests.
        """
        weights = [load.weight for load in present]
        whole = sum(wanted)
        allowed = self._allowed(
            [Load(load.weight, load.requests, load.rows + more) for load, more in zip(present, wanted, strict=True)],
            drafted=True,
        )
        requests, rows = sum(load.requests for load in present), sum(load.rows for load in present)
        if whole <= room and self._seconds(requests, rows + whole) <= allowed * (1 + _DETAIL):
            return None
        most = self._most_rows(requests, requests + rows + whole, allowed) - requests - rows
        return split_whole(max(0, min(most, room)), list(wanted), weights)

    def forget(self) -> None:
        """There are no several tenants: nobody owes anybody anything."""
        self._debt, self._held_back = 0.0, 0

    def observe_wait(self, seconds: float) -> None:
        """A pass has waited so long for trees that some of its tenants asked for, and others not."""
        self._debt += seconds

    def _hold_back(self, demands: Sequence[Demand]) -> set[RequestState]:
        """Requests that await trees, while others' streams have yet to make up for waits; never all there are."""
        if self._debt <= 0.0 or self._held_back >= MOST_HELD_BACK:
            self._held_back = 0
            return set()
        awaiting = [any(state.draft.awaiting_tree for state in demand.decoding) for demand in demands]
        if all(awaiting) or not any(awaiting):
            self._held_back = 0
            return set()
        self._held_back += 1
        return {state for demand in demands for state in demand.decoding if state.draft.awaiting_tree}

    def _take_turns(self, demand: Demand, load: Load, share: float, left_out: set[RequestState]) -> set[RequestState]:
        """The requests of a tenant that decode in a later pass: those after the ones whose turn it is."""
        tenant = demand.tenant
        decoding = [state for state in demand.decoding if state not in left_out]
        tenant.decode_credit += self._decode_share(load, share)
        count = max(0, min(len(decoding), int(tenant.decode_credit + _DETAIL)))
        tenant.decode_credit = min(1.0, tenant.decode_credit - count)
        return set(decoding) - self._next_in_turn(tenant, decoding, count)

    def _next_in_turn(self, tenant: Tenant, decoding: list[RequestState], count: int) -> set[RequestState]:
        """So many of a tenant's requests, which come in order of arrival, after the one whose turn was last."""
        if count == len(decoding):
            return set(decoding)
        after = bisect_right(decoding, tenant.turn, key=lambda state: state.parameters.arrival_number)
        order = (decoding[after:] + decoding[:after])[:count]
        if order:
            tenant.turn = order[-1].parameters.arrival_number
        return set(order)

    def _save_up(self, tenant: Tenant, load: Load, share: float) -> int:
        """Prompt rows of a tenant that has no share of the pass for all: its savings, none until they are a slice."""
        credit = self._credit(tenant) + share - self._decode_share(load, share)
        rows = min(load.rows, int(credit + _DETAIL))
        if rows < min(self._slice, load.rows):
            rows = 0
        tenant.prompt_credit = min(self._burst, credit - rows)
        return rows

    def _lend(
        self,
        demands: Sequence[Demand],
        held_back: frozenset[RequestState],
        left_out: set[RequestState],
        prompt_rows: dict[str, int],
    ) -> None:
        """No tenant's savings are enough for a turn, and no pass may be empty: who is nearest to one has it now."""
        best, whose, what = -float("inf"), None, 0
        for demand in demands:
            tenant = demand.tenant
            if demand.prompt_rows:
                rows = min(self._slice, demand.prompt_rows)
                if (saved := self._credit(tenant) / rows) > best:
                    best, whose, what = saved, demand, rows
            if any(state not in held_back for state in demand.decoding) and tenant.decode_credit > best:
                best, whose, what = tenant.decode_credit, demand, 0
        if whose is None:
            return
        if what:
            prompt_rows[whose.tenant.name] = what
            whose.tenant.prompt_credit = self._credit(whose.tenant) - what
        else:
            left_out -= self._next_in_turn(whose.tenant, [s for s in whose.decoding if s not in held_back], 1)
            whose.tenant.decode_credit -= 1.0

    def _credit(self, tenant: Tenant) -> float:
        return self._burst if tenant.prompt_credit is None else tenant.prompt_credit

    def _decode_share(self, load: Load, share: float) -> float:
        """Of a tenant's share, what goes to requests that decode: half, or what prompts leave."""
        return min(float(load.requests), max(share / 2, share - load.rows))

    def _allowed(self, loads: Sequence[Load], *, drafted: bool) -> float:
        """Seconds that a pass may take.

        A tenant's own prompt is its own time: of rows besides those that decode, only `drafted` ones count for what
        others may have.
        """
        weight = sum(load.weight for load in loads)
        requests, rows = sum(load.requests for load in loads), sum(load.rows for load in loads)
        fair = float("inf")
        for load in set(loads):
            if load.requests or load.rows:
                times = weight / load.weight
                decoding = min(requests, ceil(load.requests * times - _DETAIL))
                scaled = (load.requests + load.rows) * times if drafted else load.requests * times + load.rows
                whole = min(requests + rows, ceil(scaled - _DETAIL))
                fair = min(fair, self._seconds(decoding, whole - decoding))
        return SLOWDOWN * fair

    def _seconds(self, requests: int, rows: int) -> float:
        """Of a pass with so many requests that decode and so many other rows, of which one stands for a request."""
        return self._costs.seconds(requests, rows) if requests else self._costs.seconds(1, max(0, rows - 1))

    def _most_rows(self, requests: int, most: int, allowed: float) -> int:
        """Rows, those of requests first, of the largest pass within so many seconds; at least one."""
        low, high = 1, most
        while low < high:
            middle = (low + high + 1) // 2
            first = min(requests, middle)
            if self._seconds(first, middle - first) <= allowed * (1 + _DETAIL):
                low = middle
            else:
                high = middle - 1
        return low
