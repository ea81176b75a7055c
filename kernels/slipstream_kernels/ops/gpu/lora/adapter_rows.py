"""The rows of a pass that have an adapter, in blocks of one adapter each, which the other ops of adapters go by."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous

_OWN, _OTHERS, _COMPARED = 16, 128, 4096
"""Rows of a program; how many it compares them with at a time, at most; and these times slots, which registers hold."""


@dataclass(frozen=True, slots=True)
class AdapterRows:
    """int32 `slots` [blocks], each block's adapter, -1 where there is none, and `rows` [blocks, size], padded by -1."""

    slots: torch.Tensor
    rows: torch.Tensor

    @classmethod
    def empty(cls, rows: int, adapters: int, size: int, device: torch.device | str) -> AdapterRows:
        """Room for a pass of `rows` rows."""
        blocks = most_blocks(rows, adapters, size)
        slots = torch.empty(blocks, dtype=torch.int32, device=device)
        return cls(slots, torch.empty(blocks, size, dtype=torch.int32, device=device))


def most_blocks(rows: int, adapters: int, size: int) -> int:
    """Blocks that `rows` rows with so many adapters may need."""
    return min(rows, int(triton.cdiv(rows, size)) + adapters)


@triton.jit
def _slot_of(lines: tl.tensor, write_slots: tl.tensor, adapters: tl.tensor, row: tl.tensor, rows: int) -> tl.tensor:
    """The adapter of a row; -1 of those that have none, of padding, and beyond the end."""
    real = (row < rows) & (tl.load(write_slots + row, mask=row < rows, other=-1) >= 0)
    line = tl.load(lines + row, mask=real, other=0)
    return tl.load(adapters + line, mask=real, other=-1)


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
    rows: int,
    SLOTS: tl.constexpr,
    SIZE: tl.constexpr,
    OWN: tl.constexpr,
    OTHERS: tl.constexpr,
) -> None:
    """Place OWN rows: behind the blocks of adapters in lower slots, in order among those of their own."""
    release_next()
    wait_for_previous()
    row = tl.program_id(0) * OWN + tl.arange(0, OWN)
    slot = _slot_of(lines, write_slots, adapters, row, rows)
    before = tl.zeros((OWN,), tl.int32)
    counts = tl.zeros((SLOTS,), tl.int32)
    known = tl.arange(0, SLOTS)
    for start in range(0, rows, OTHERS):
        other = start + tl.arange(0, OTHERS)
        theirs = _slot_of(lines, write_slots, adapters, other, rows)
        same = (theirs[None, :] == slot[:, None]) & (other[None, :] < row[:, None])
        before += tl.sum(same.to(tl.int32), axis=1)
        counts += tl.sum((theirs[None, :] == known[:, None]).to(tl.int32), axis=1)
    blocks = (counts + SIZE - 1) // SIZE
    first = tl.sum(tl.where(known[None, :] < slot[:, None], blocks[None, :], 0), axis=1)
    block = first + before // SIZE
    has = slot >= 0
    tl.store(placed + block * SIZE + before % SIZE, row, mask=has)
    tl.store(slots + block, slot, mask=has & (before % SIZE == 0))


def gather_adapter_rows(
    lines: torch.Tensor, write_slots: torch.Tensor, adapters: torch.Tensor, num_slots: int, out: AdapterRows
) -> None:
    """Sort rows by adapter.

    int32 `lines` and `write_slots` [rows], as of a plan; int32 `adapters` [lines], slot of each line's adapter, below 0
    where it has none. `out` has room for `most_blocks`.
    """
    blocks, size = out.rows.shape
    slots = triton.next_power_of_2(max(2, num_slots))
    launch(_clear, (triton.cdiv(blocks * size, 256),), out.slots, out.rows, blocks, SIZE=size, BLOCK=256)
    launch(
        _gather,
        (triton.cdiv(len(lines), _OWN),),
        lines,
        write_slots,
        adapters,
        out.slots,
        out.rows,
        len(lines),
        SLOTS=slots,
        SIZE=size,
        OWN=_OWN,
        OTHERS=max(16, min(_OTHERS, _COMPARED // slots)),
    )


def gather_adapter_rows_reference(
    lines: torch.Tensor, write_slots: torch.Tensor, adapters: torch.Tensor, num_slots: int, out: AdapterRows
) -> None:
    """The same in torch."""
    out.slots.fill_(-1)
    out.rows.fill_(-1)
    slots = torch.where(write_slots >= 0, adapters[lines.long()], -1)
    block, size = 0, out.rows.shape[1]
    for slot in range(num_slots):
        for part in (slots == slot).nonzero()[:, 0].split(size):
            if len(part):
                out.slots[block] = slot
                out.rows[block, : len(part)] = part.int()
                block += 1
