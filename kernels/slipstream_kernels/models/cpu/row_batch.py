"""The plan of one forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Rows (tokens) of any requests for one forward pass. All arrays are int32 and C-contiguous.

    A row attends to the positions 0 .. prefix_lengths - 1 through its line of the page table, then to its ancestor
    slots. A committed token writes a page slot and counts itself into its prefix; a tree node writes a scratch slot,
    which is its last ancestor slot. No two rows of a batch write the same slot.
    """

    token_ids: Int32
    """[rows]"""
    positions: Int32
    """[rows], absolute"""
    write_slots: Int32
    """[rows], slot that receives the row's key and value"""
    page_lines: Int32
    """[rows], line of the page table"""
    prefix_lengths: Int32
    """[rows], positions read through the page table"""
    ancestor_slots: Int32
    """[rows, width], scratch slots of the following positions; beyond num_ancestors ignored"""
    num_ancestors: Int32
    """[rows], 0 for committed tokens"""
    page_table: Int32
    """[lines, pages], page ids"""
    logit_rows: Int32
    """[any], rows whose logits are wanted, in the order wanted"""
    adapters: Int32 = field(default_factory=lambda: np.zeros(0, np.int32))
    """[rows], slot of the row's LoRA adapter, below 0 where it has none; empty where no row has one"""

    def __len__(self) -> int:
        return len(self.token_ids)

    @classmethod
    def chunk(cls, token_ids: Sequence[int], start: int, pages: Sequence[int], page_size: int) -> RowBatch:
        """Committed tokens of one request at positions start, start + 1, ..; logits of all of them."""
        rows = len(token_ids)
        positions = np.arange(start, start + rows, dtype=np.int32)
        table = np.array([pages], np.int32)
        return cls(
            token_ids=np.array(token_ids, np.int32),
            positions=positions,
            write_slots=table[0, positions // page_size] * np.int32(page_size) + positions % np.int32(page_size),
            page_lines=np.zeros(rows, np.int32),
            prefix_lengths=positions + np.int32(1),
            ancestor_slots=np.zeros((rows, 1), np.int32),
            num_ancestors=np.zeros(rows, np.int32),
            page_table=table,
            logit_rows=np.arange(rows, dtype=np.int32),
        )
