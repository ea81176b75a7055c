"""The plan of one pass of the GPU model: a value, made by whoever schedules."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from slipstream_kernels.device_tree import DeviceTrees
from slipstream_kernels.models.gpu.batch.plan_kernels import count_rows, in_order, lay_rows

Int32 = npt.NDArray[np.int32]

CHOICE = 8
"""Columns of `PassPlan.choices`."""


def _no_spans() -> Int32:
    return np.zeros((0, 4), np.int32)


def _none_scored() -> Int32:
    return np.zeros((0, 3), np.int32)


def _no_choices() -> Int32:
    return np.zeros((0, CHOICE), np.int32)


@dataclass(slots=True, eq=False)
class PassPlan:
    """Rows (tokens) of any requests for one pass. All arrays are int32, C-contiguous and without padding.

    Every row lies in one span of `decodes` or `prefills`. A committed token writes a page slot and counts itself into
    its prefix; a tree node writes a scratch slot and hangs below the first row of its span, the tree's root.
    """

    token_ids: Int32
    """[rows]; -1 stands for the token that was decided last for the row's line"""
    positions: Int32
    """[rows], absolute"""
    write_slots: Int32
    """[rows], slot that receives the row's key and value; no two rows write the same"""
    lines: Int32
    """[rows], the request's line in the page table and the sampling tables"""
    prefix_lengths: Int32
    """[rows], positions read through the page table: position + 1 of a committed token, a node's root's position + 1"""
    parents: Int32
    """[rows]; -2 for a committed token, else the parent's index among its tree's nodes, -1 for a child of the root"""
    root_rows: Int32
    """[rows], row of the tree's root, whose node j is row root + 1 + j; a committed token's own row"""
    logit_rows: Int32
    """[logits], rows whose logits are wanted; those of a deciding item are consecutive: root, nodes"""
    deciding: Int32
    """[items, 4]: first logit index, rows (root included), line, position of the root + 1"""
    decodes: Int32 = field(default_factory=_no_spans)
    """[spans, 4]: first row, rows, line, prefix length; rows of a span share line and prefix"""
    prefills: Int32 = field(default_factory=_no_spans)
    """[spans, 4]: first row, rows, line, first position; consecutive committed tokens"""
    scored: Int32 = field(default_factory=_none_scored)
    """[any, 3]: row, a token whose logprob its logits are to tell, how many of the likeliest tokens are told beside"""
    choices: Int32 = field(default_factory=_no_choices)
    """[requests whose rows the device settles, 8], as in `select_outcomes`, those with trees drafted on the device as
    `hand_trees` takes them; but for the first segments. All `decodes` decide; the pass is `in_order`, `has_trees`,
    and follows the one whose results select the outcomes"""
    trees: DeviceTrees | None = None
    """Those that are drafted on the device, if any"""
    has_trees: bool = False
    keep_logits: bool = True
    """Whether the logits outlive the next launch, for `logprobs`; that costs a copy of them"""

    @classmethod
    def empty(cls) -> PassPlan:
        """A pass of no rows."""
        none = np.zeros(0, np.int32)
        return cls(none, none, none, none, none, none, none, none, _no_spans())

    @classmethod
    def chunk(cls, token_ids: Int32, *, line: int, start: int, slots: Int32) -> PassPlan:
        """Committed tokens of one request at positions start, start + 1, .., the last of which decides."""
        rows = len(token_ids)
        count = np.arange(rows, dtype=np.int32)
        end = start + rows
        single = rows == 1
        span = np.array([[0, rows, line, end if single else start]], np.int32)
        return cls(
            token_ids=token_ids,
            positions=count + np.int32(start),
            write_slots=slots,
            lines=np.full(rows, line, np.int32),
            prefix_lengths=count + np.int32(start + 1),
            parents=np.full(rows, -2, np.int32),
            root_rows=count,
            logit_rows=count[-1:],
            deciding=np.array([[0, 1, line, end]], np.int32),
            decodes=span if single else _no_spans(),
            prefills=_no_spans() if single else span,
        )

    @classmethod
    def of_spans(
        cls,
        items: Int32,
        decodes: int,
        known: Int32,
        parents: Int32,
        *,
        page_table: Int32,
        page_size: int,
        first_scratch_slot: int = 0,
        trees: DeviceTrees | None = None,
        keep_logits: bool = True,
    ) -> PassPlan:
        """Consecutive spans, of which the first ones are `decodes`; see `lay_rows`."""
        total, logits, deciding, chosen = count_rows(items)
        rows, spans = np.empty((7, total), np.int32), np.empty((len(items), 4), np.int32)
        plan = cls(
            token_ids=rows[0],
            positions=rows[1],
            write_slots=rows[2],
            lines=rows[3],
            prefix_lengths=rows[4],
            parents=rows[5],
            root_rows=rows[6],
            logit_rows=np.empty(logits, np.int32),
            deciding=np.empty((deciding, 4), np.int32),
            decodes=spans[:decodes],
            prefills=spans[decodes:],
            choices=np.empty((chosen, CHOICE), np.int32),
            trees=trees,
            has_trees=chosen > 0 or len(parents) > 0,
            keep_logits=keep_logits,
        )
        told = plan.logit_rows, plan.deciding, plan.choices
        lay_rows(items, decodes, known, parents, page_table, page_size, first_scratch_slot, rows, spans, *told)
        return plan

    @property
    def rows(self) -> int:
        return len(self.token_ids)

    @property
    def decode_rows(self) -> int:
        """Rows of all spans of `decodes`."""
        return int(self.decodes[:, 1].sum())

    @property
    def in_order(self) -> bool:
        """Whether the rows are those of `decodes`, then those of `prefills`, each span behind the one before it."""
        return in_order(self.decodes, self.prefills)

    def reordered(self) -> PassPlan:
        """The same pass with its rows `in_order`.

        Raises ValueError where the spans do not hold each row once, or there are choices, which name rows.
        """
        if len(self.choices):
            raise ValueError("a pass with choices must be in order")
        spans = np.concatenate([self.decodes, self.prefills])
        starts = np.cumsum(spans[:, 1], dtype=np.int32) - spans[:, 1]
        total = int(spans[:, 1].sum())
        old = np.arange(total, dtype=np.int32) + np.repeat(spans[:, 0] - starts, spans[:, 1])
        if not np.array_equal(np.sort(old), np.arange(self.rows)):
            raise ValueError(f"spans hold {total} rows of {self.rows}, or some of them more than once")
        new = np.empty_like(old)
        new[old] = np.arange(total, dtype=np.int32)
        scored = self.scored.copy()
        scored[:, 0] = new[scored[:, 0]]
        spans[:, 0] = starts
        return replace(
            self,
            token_ids=self.token_ids[old],
            positions=self.positions[old],
            write_slots=self.write_slots[old],
            lines=self.lines[old],
            prefix_lengths=self.prefix_lengths[old],
            parents=self.parents[old],
            root_rows=new[self.root_rows[old]],
            logit_rows=new[self.logit_rows],
            decodes=spans[: len(self.decodes)],
            prefills=spans[len(self.decodes) :],
            scored=scored,
        )
