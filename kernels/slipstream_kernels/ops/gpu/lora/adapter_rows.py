"""The rows of a pass in blocks of one adapter each, or of none, which the other ops of adapters go by.

What `gather_adapter_rows` leaves may be read before `wait_for_previous`, as a pass's plan may, by every kernel that is
launched behind the one that follows it: its last kernel releases the next only when the others have ended.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous

_OWN, _OTHERS, _COMPARED = 16, 128, 4096
"""Rows of a program; how many it compares them with at a time, at most; these times groups, which registers hold."""


@dataclass(frozen=True, slots=True)
class AdapterRows:
    """All int32. Blocks without an adapter come behind those with one, and hold rows that pad a pass, too."""

    slots: torch.Tensor
    """[blocks], each block's adapter, -1 where it has none or no rows"""
    rows: torch.Tensor
    """[blocks, size], each row of the pass once, padded by -1"""
    row_slots: torch.Tensor
    """[rows], each row's adapter, -1 where it has none"""
    active: torch.Tensor
    """[adapters + 1]: how many adapters some row has, and these in ascending order"""

    @classmethod
    def empty(cls, rows: int, adapters: int, size: int, device: torch.device | str) -> AdapterRows:
        """Room for a pass of `rows` rows."""
        blocks = most_blocks(rows, adapters, size)
        shapes = (blocks,), (blocks, size), (rows,), (adapters + 1,)
        return cls(*(torch.empty(shape, dtype=torch.int32, device=device) for shape in shapes))

    def of(self, rows: int) -> AdapterRows:
        """The room of a pass of fewer rows."""
        (_, size), adapters = self.rows.shape, len(self.active) - 1
        blocks = most_blocks(rows, adapters, size)
        return AdapterRows(self.slots[:blocks], self.rows[:blocks], self.row_slots[:rows], self.active)

    @property
    def nbytes(self) -> int:
        return self.slots.nbytes + self.rows.nbytes + self.row_slots.nbytes + self.active.nbytes


def most_blocks(rows: int, adapters: int, size: int) -> int:
    """Blocks that `rows` rows may need, each with one of so many adapters or with none."""
    return min(rows, int(triton.cdiv(rows, size)) + adapters)


@triton.jit
def _group_of(
    lines: tl.tensor, write_slots: tl.tensor, adapters: tl.tensor, row: tl.tensor, rows: int, NONE: tl.constexpr
) -> tl.tensor:
    """The adapter of a row; NONE of those that have none and of padding; -1 beyond the end."""
    real = (row < rows) & (tl.load(write_slots + row, mask=row < rows, other=-1) >= 0)
    line = tl.load(lines + row, mask=real, other=0)
    slot = tl.load(adapters + line, mask=real, other=-1)
    return tl.where(row < rows, tl.where(slot < 0, NONE, slot), -1)


@triton.jit(do_not_specialize=["blocks"])
def _clear(slots: tl.tensor, placed: tl.tensor, blocks: int, SIZE: tl.constexpr, BLOCK: tl.constexpr) -> None:
    release_next()
    wait_for_previous()
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(placed + place, -1, mask=place < blocks * SIZE)
    tl.store(slots + place, -1, mask=place < blocks)


@triton.jit(do_not_specialize=["rows"])
def _gather(
    lines: tl.tensor,
    write_slots: tl.tensor,
    adapters: tl.tensor,
    slots: tl.tensor,
    placed: tl.tensor,
    row_slots: tl.tensor,
    active: tl.tensor,
    rows: int,
    NONE: tl.constexpr,
    GROUPS: tl.constexpr,
    SIZE: tl.constexpr,
    OWN: tl.constexpr,
    OTHERS: tl.constexpr,
) -> None:
    """Place OWN rows: behind the blocks of lower groups, in order among those of their own. NONE is the last group."""
    release_next()
    wait_for_previous()
    row = tl.program_id(0) * OWN + tl.arange(0, OWN)
    group = _group_of(lines, write_slots, adapters, row, rows, NONE)
    before = tl.zeros((OWN,), tl.int32)
    counts = tl.zeros((GROUPS,), tl.int32)
    known = tl.arange(0, GROUPS)
    for start in range(0, rows, OTHERS):
        other = start + tl.arange(0, OTHERS)
        theirs = _group_of(lines, write_slots, adapters, other, rows, NONE)
        same = (theirs[None, :] == group[:, None]) & (other[None, :] < row[:, None])
        before += tl.sum(same.to(tl.int32), axis=1)
        counts += tl.sum((theirs[None, :] == known[:, None]).to(tl.int32), axis=1)
    blocks = (counts + SIZE - 1) // SIZE
    first = tl.sum(tl.where(known[None, :] < group[:, None], blocks[None, :], 0), axis=1)
    block = first + before // SIZE
    inside = row < rows
    slot = tl.where(group == NONE, -1, group)
    tl.store(placed + block * SIZE + before % SIZE, row, mask=inside)
    tl.store(slots + block, slot, mask=inside & (before % SIZE == 0))
    tl.store(row_slots + row, slot, mask=inside)
    if tl.program_id(0) == 0:
        used = ((counts > 0) & (known < NONE)).to(tl.int32)
        tl.store(active, tl.sum(used))
        tl.store(active + tl.cumsum(used), known, mask=used > 0)


@triton.jit
def _settle() -> None:
    """Hold back the next kernel until those before have ended."""
    wait_for_previous()
    release_next()


def gather_adapter_rows(
    lines: torch.Tensor, write_slots: torch.Tensor, adapters: torch.Tensor, num_slots: int, out: AdapterRows
) -> None:
    """Sort rows by adapter.

    int32 `lines` and `write_slots` [rows], as of a plan; int32 `adapters` [lines], slot of each line's adapter, below 0
    where it has none. `out` has room for `most_blocks`.
    """
    blocks, size = out.rows.shape
    groups = triton.next_power_of_2(num_slots + 1)
    launch(_clear, (triton.cdiv(blocks * size, 256),), out.slots, out.rows, blocks, SIZE=size, BLOCK=256)
    launch(
        _gather,
        (triton.cdiv(len(lines), _OWN),),
        lines,
        write_slots,
        adapters,
        out.slots,
        out.rows,
        out.row_slots,
        out.active,
        len(lines),
        NONE=num_slots,
        GROUPS=groups,
        SIZE=size,
        OWN=_OWN,
        OTHERS=max(16, min(_OTHERS, _COMPARED // groups)),
    )
    launch(_settle, (1,), warps=1)


def gather_adapter_rows_reference(
    lines: torch.Tensor, write_slots: torch.Tensor, adapters: torch.Tensor, num_slots: int, out: AdapterRows
) -> None:
    """The same in torch."""
    out.slots.fill_(-1)
    out.rows.fill_(-1)
    slots = torch.where(write_slots >= 0, adapters[lines.long()], -1).clamp(min=-1)
    out.row_slots.copy_(slots)
    used = slots[slots >= 0].unique()
    out.active[0] = len(used)
    out.active[1 : len(used) + 1] = used
    block, size = 0, out.rows.shape[1]
    for slot in (*range(num_slots), -1):
        for part in (slots == slot).nonzero()[:, 0].split(size):
            if len(part):
                out.slots[block] = slot
                out.rows[block, : len(part)] = part.int()
                block += 1
