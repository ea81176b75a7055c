"""Lays the scheduled tokens and drafted nodes out as the plan of a pass on a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from slipstream_kernels.device_tree import DeviceTree
from slipstream_kernels.models.gpu.batch.pass_plan import PassPlan
from slipstream_kernels.models.gpu.batch.plan_kernels import lay_rows, plan_items
from slipstream_kernels.token_tree import TokenTree
from verify_service.core.prompt_scores import next_tokens
from verify_service.core.request_state import RequestState
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.kv_cache.page_table import PageTable
from verify_service.model_runner.device_choices import device_choices

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
        spans = _Spans()
        for item in decodes:
            spans.add(item, item.base - 1, 1, item.tree, decides=item.decides)
        for item in prefills:
            rooted = item.tree is not None  # the root and its tree are in a span of their own
            spans.add(item, item.first, item.count - rooted, None, decides=item.decides and not rooted)
        return self._laid_out(spans, len(decodes), before), spans.deciding

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

    def _laid_out(self, spans: _Spans, decodes: int, before: Mapping[RequestState, int]) -> PassPlan:
        """The plan of spans, of which the first ones decode."""
        items = np.fromiter(spans.items, np.int32, len(spans.items)).reshape(-1, 5)
        parents = np.fromiter(spans.parents, np.int32, len(spans.parents))
        rows = np.empty((6, len(spans.token_ids)), dtype=np.int32)
        places = np.empty((len(items), 4), dtype=np.int32)
        logit_rows = np.empty(spans.logits, dtype=np.int32)
        deciding = np.empty((len(spans.deciding), 4), dtype=np.int32)
        scratch = self._first_scratch_slot
        lay_rows(items, decodes, parents, self._pages, self._page_size, scratch, rows, places, logit_rows, deciding)
        roots = logit_rows[deciding[:, 0]].tolist()
        choices = {"choices": device_choices(spans.deciding, roots, before)} if spans.chooses else {}
        drafted = (item.tree.trees for item in spans.deciding if isinstance(item.tree, DeviceTree))
        return PassPlan(
            token_ids=np.fromiter(spans.token_ids, np.int32, len(spans.token_ids)),
            positions=rows[0],
            write_slots=rows[1],
            lines=rows[2],
            prefix_lengths=rows[3],
            parents=rows[4],
            root_rows=rows[5],
            logit_rows=logit_rows,
            deciding=deciding,
            decodes=places[:decodes],
            prefills=places[decodes:],
            has_trees=spans.chooses or bool(spans.parents),
            keep_logits=spans.keep_logits,
            trees=next(drafted, None) if spans.chooses else None,
            **choices,
        )


class _Spans:
    """Gathers the spans of a pass. `items` and `parents` are those of `lay_rows`, flat."""

    __slots__ = ("chooses", "deciding", "items", "keep_logits", "logits", "parents", "token_ids")

    def __init__(self) -> None:
        self.items: list[int] = []
        self.parents: list[int] = []
        self.token_ids: list[int] = []
        self.deciding: list[ScheduledRequest] = []
        self.logits = 0
        self.keep_logits = False
        self.chooses = False

    def add(self, item: ScheduledRequest, first: int, count: int, tree: TokenTree | None, *, decides: bool) -> None:
        """`count` tokens of an item from `first` on, of which one alone may not be known yet, and then a tree."""
        state, nodes = item.state, 0
        tokens = state.tokens[first : first + count]
        self.token_ids += tokens or (_UNKNOWN,)
        if tree is None:
            self.chooses |= item.unresolved
        elif isinstance(tree, DeviceTree):
            self.chooses = True
            nodes = item.num_rows - 1
            self.token_ids += (0,) * nodes
            self.parents += range(-1, nodes - 1)
        else:
            nodes = item.num_rows - 1
            self.token_ids += tree.token_ids
            self.parents += tree.parents
        self.items += (state.kv.req_index, first, count, nodes, decides)
        if decides:
            self.deciding.append(item)
            self.logits += 1 + nodes
            self.keep_logits |= state.parameters.sampling.logprobs is not None
