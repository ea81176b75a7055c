"""Lays the scheduled tokens and drafted nodes out as the plan of a pass on a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from slipstream_kernels.device_tree import DeviceTree, DeviceTrees
from slipstream_kernels.models.gpu.batch.pass_plan import PassPlan
from slipstream_kernels.models.gpu.batch.plan_kernels import SPAN, plan_items
from slipstream_kernels.ops.gpu.tree_handover import tree_source
from verify_service.core.prompt_scores import next_tokens
from verify_service.core.request_state import RequestState
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.kv_cache.page_table import PageTable

IntArray = NDArray[np.int32]

_UNKNOWN = -1
"""Token id of a row that takes what the step before decided."""


class GpuBatchBuilder:
    """Plans passes. A plan's arrays are its own and hold for as long as somebody needs them."""

    def __init__(self, page_table: PageTable, page_size: int, first_scratch_slot: int) -> None:
        self._pages = page_table.entries
        self._page_size = page_size
        self._first_scratch_slot = first_scratch_slot

    def build(
        self, items: Sequence[ScheduledRequest], before: Mapping[RequestState, int] = MappingProxyType({})
    ) -> tuple[PassPlan, list[ScheduledRequest]]:
        """The plan, and the items that decide a token in the order of the plan's.

        An item of one token is a decoding span, and so is a root with its tree; other tokens are prefill spans. Items
        with choices have all rows that any of them takes, those with trees on the device, all of one round, as many as
        these may have; `before` has their places in the step before.
        """
        prefills = [item for item in items if item.count > 1]
        decodes = [item for item in items if item.count == 1 or item.tree is not None] if prefills else items
        spans = _Spans(before)
        spans.add_decodes(decodes)
        spans.add_prefills(prefills)
        plan = PassPlan.of_spans(
            _int32(spans.items).reshape(-1, SPAN),
            len(decodes),
            _int32(spans.known),
            _int32(spans.parents),
            page_table=self._pages,
            page_size=self._page_size,
            first_scratch_slot=self._first_scratch_slot,
            trees=spans.trees,
            keep_logits=spans.keep_logits,
        )
        return plan, spans.deciding

    @staticmethod
    def state_rows(
        items: Sequence[ScheduledRequest], accepted: Mapping[ScheduledRequest, tuple[int, ...]]
    ) -> dict[ScheduledRequest, range | list[int]]:
        """The rows of `build`'s plan that hold each item's tokens, and behind them its accepted nodes."""
        places: dict[ScheduledRequest, range | list[int]] = {}
        row = 0
        for item in items:
            if item.count == 1 or item.tree is not None:
                nodes = accepted.get(item, ())
                places[item] = [row, *(row + 1 + node for node in nodes)] if nodes else range(row, row + 1)
                row += item.num_rows
        for item in items:
            if item.count > 1:
                end = row + item.count - (item.tree is not None)
                places[item] = [*range(row, end), *places[item]] if item in places else range(row, end)
                row = end
        return places

    def scored(self, items: Sequence[ScheduledRequest], scored: Sequence[ScheduledRequest]) -> IntArray:
        """`PassPlan.scored` of those of a plan's items that have scored positions, one item after the other."""
        places = self.state_rows(items, {})
        tables = []
        for item in scored:
            rows = places[item][item.scored.start - item.first : item.scored.stop - item.first]
            table = np.empty((len(rows), 3), dtype=np.int32)
            table[:, 0], table[:, 1] = rows, next_tokens(item.state.tokens, item.scored)
            table[:, 2] = item.state.parameters.sampling.prompt_logprobs or 0
            tables.append(table)
        return np.concatenate(tables)

    @staticmethod
    def packed_state_rows(
        items: Sequence[ScheduledRequest], accepted: Mapping[ScheduledRequest, tuple[int, ...]]
    ) -> dict[ScheduledRequest, range | list[int]]:
        """The same where the rows of each item's tokens are followed by room for all nodes that it could accept."""
        places: dict[ScheduledRequest, range | list[int]] = {}
        row = 0
        for item in items:
            places[item] = range(row, row + item.count + len(accepted.get(item, ())))
            row += item.count + item.depth
        return places

    @staticmethod
    def planned_rows(items: Sequence[ScheduledRequest]) -> NDArray[np.int64]:
        """Where the rows of each item of `build`'s plan are, int64 [items, 5], as `plan_items` returns them."""
        flat: list[int] = []
        for item in items:
            flat += (item.count, item.tree is not None, item.num_rows, item.depth, item.decides)
        return plan_items(np.array(flat, np.int64).reshape(-1, 5))


class _Spans:
    """Gathers the spans of a pass. `items`, `known` and `parents` are those of `lay_rows`, flat.

    `before` has the places of requests among those that the step before decides, whose rows the device may settle:
    those of trees that it has alone, or the root of an unresolved item.
    """

    __slots__ = ("before", "deciding", "items", "keep_logits", "known", "parents", "trees")

    def __init__(self, before: Mapping[RequestState, int]) -> None:
        self.before = before
        self.items: list[int] = []
        self.known: list[int] = []
        self.parents: list[int] = []
        self.deciding: list[ScheduledRequest] = []
        self.trees: DeviceTrees | None = None
        self.keep_logits = False

    def add_decodes(self, decodes: Sequence[ScheduledRequest]) -> None:
        """The last token of each, which may not be known yet, and its tree."""
        items, known, before = self.items, self.known, self.before
        for item in decodes:
            state, tree, base = item.state, item.tree, item.base
            place, source, tokens = -1, 0, state.tokens
            known.append(tokens[base - 1] if base <= len(tokens) else _UNKNOWN)
            if tree is None:
                if item.unresolved:
                    place = before[state]
            elif isinstance(tree, DeviceTree):
                place, self.trees = before[state], tree.trees
                source = tree_source(tree.row, unresolved=item.unresolved)
            else:
                known += tree.token_ids
                self.parents += tree.parents
            items += (state.kv.req_index, base - 1, 1, item.num_rows - 1, item.decides, place, source)
        self._decide([item for item in decodes if item.decides])

    def add_prefills(self, prefills: Sequence[ScheduledRequest]) -> None:
        """All tokens of each, but its root where that has a tree and is in a span of its own."""
        for item in prefills:
            rooted = item.tree is not None
            count = item.count - rooted
            self.known += item.state.tokens[item.first : item.first + count]
            self.items += (item.state.kv.req_index, item.first, count, 0, item.decides and not rooted, -1, 0)
        self._decide([item for item in prefills if item.decides and item.tree is None])

    def _decide(self, deciding: list[ScheduledRequest]) -> None:
        """These spans, the last ones added, decide."""
        self.deciding += deciding
        self.keep_logits |= any(item.state.parameters.sampling.logprobs is not None for item in deciding)


def _int32(values: Sequence[int]) -> IntArray:
    return np.fromiter(values, np.int32, len(values))
