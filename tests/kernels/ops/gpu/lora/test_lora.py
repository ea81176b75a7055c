"""Rows by adapter, and the two products of an adapter: kernels against their twins, and rows against themselves."""

from __future__ import annotations

import pytest
import torch

from slipstream_kernels.ops.gpu.gate_up import interleave_gate_up
from slipstream_kernels.ops.gpu.lora.adapter_rows import (
    AdapterRows,
    gather_adapter_rows,
    gather_adapter_rows_reference,
    most_blocks,
)
from slipstream_kernels.ops.gpu.lora.expand import ExpandTiles, expand, expand_reference
from slipstream_kernels.ops.gpu.lora.shrink import shrink, shrink_reference

SLOTS = 3


def normal(*shape: int, device: torch.device) -> torch.Tensor:
    return torch.randn(shape, device=device).bfloat16()


def gathered(slots: list[int], device: torch.device, size: int = 16) -> AdapterRows:
    """Rows whose adapters are `slots`, one line each."""
    rows = AdapterRows.empty(len(slots), SLOTS, size, device)
    lines = torch.arange(len(slots), dtype=torch.int32, device=device)
    gather_adapter_rows_reference(lines, lines, torch.tensor(slots, dtype=torch.int32, device=device), SLOTS, rows)
    return rows


@pytest.mark.parametrize("size", [4, 16])
@pytest.mark.parametrize("count", [1, 21, 150])
def test_rows_are_gathered_by_adapter(device: torch.device, count: int, size: int) -> None:
    generator = torch.Generator().manual_seed(count)
    lines = torch.randint(0, 5, (count,), dtype=torch.int32, generator=generator).to(device)
    write_slots = torch.arange(count, dtype=torch.int32, device=device)
    write_slots[3::7] = -1
    adapters = torch.tensor([2, -1, 0, 2, 1], dtype=torch.int32, device=device)
    found, expected = (AdapterRows.empty(count, SLOTS, size, device) for _ in range(2))
    gather_adapter_rows(lines, write_slots, adapters, SLOTS, found)
    gather_adapter_rows_reference(lines, write_slots, adapters, SLOTS, expected)
    assert torch.equal(found.slots, expected.slots) and torch.equal(found.rows, expected.rows)
    assert torch.equal(found.row_slots, expected.row_slots)
    adapted = expected.rows[expected.slots >= 0]
    wanted = [row for row in range(count) if write_slots[row] >= 0 and adapters[lines[row]] >= 0]
    assert sorted(adapted[adapted >= 0].tolist()) == wanted
    assert sorted(expected.rows[expected.rows >= 0].tolist()) == list(range(count))
    used = sorted(set(adapters[lines[wanted].long()].tolist()))
    for rows in (found, expected):
        assert rows.active[: len(used) + 1].tolist() == [len(used), *used]
        assert rows.row_slots[wanted].tolist() == adapters[lines[wanted].long()].tolist()


def test_there_is_room_for_the_worst_case(device: torch.device) -> None:
    slots = [0] * 16 + [1] * 17 + [2]
    rows = gathered(slots, device)
    assert most_blocks(len(slots), SLOTS, 16) == 6 and int((rows.slots >= 0).sum()) == 4


@pytest.mark.parametrize("ranks", [8, 48, 96])
def test_shrinking(device: torch.device, ranks: int) -> None:
    torch.manual_seed(ranks)
    slots = [0, -1, 2, 2, 1, -1, 0]
    x, a = normal(len(slots), 176, device=device), normal(SLOTS, ranks, 176, device=device)
    scales = torch.rand(SLOTS, ranks, device=device)
    found, expected = (torch.full((len(slots), ranks), torch.nan, device=device).bfloat16() for _ in range(2))
    rows = gathered(slots, device)
    shrink(x, a, scales, rows, found)
    shrink_reference(x, a, scales, rows, expected)
    for row, slot in enumerate(slots):
        if slot < 0:
            assert found[row].isnan().all() and expected[row].isnan().all()
            continue
        exact = x[row].double() @ a[slot].double().T * scales[slot].double()
        for out in (found, expected):
            assert ((out[row].double() - exact).abs() <= exact.abs() * 2**-8 + 1e-4).all()


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_expanding(device: torch.device, grouped: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(7)
    slots, rank = [1, -1, 0, 2, 0], 24
    parts = (72, 72) if grouped else (72, 16, 40)
    tiles = ExpandTiles.of(parts, device, grouped=grouped)
    x, b = normal(len(slots), len(parts) * rank, device=device), normal(SLOTS, sum(parts), rank, device=device)
    before = torch.randn(len(slots), sum(parts), device=device).to(dtype)
    rows = gathered(slots, device)
    found, expected = before.clone(), before.clone()
    expand(x, b, tiles, rows, found)
    expand_reference(x, b, tiles, rows, expected)
    assert torch.equal(found[1], before[1]) and torch.equal(expected[1], before[1])
    for row, slot in enumerate(slots):
        if slot < 0:
            continue
        own = x[row].double().unflatten(0, (len(parts), rank))
        added = torch.cat([part @ w.double().T for part, w in zip(own, b[slot].split(parts), strict=True)])
        exact = before[row].double() + (interleave_gate_up(added[:, None])[:, 0] if grouped else added)
        for out in (found, expected):
            error = 2**-8 if dtype == torch.bfloat16 else 1e-6
            assert ((out[row].double() - exact).abs() <= exact.abs() * error + 1e-4).all()


@pytest.mark.parametrize("size", [16, 64])
def test_a_rows_bits_do_not_depend_on_its_company(device: torch.device, size: int) -> None:
    torch.manual_seed(3)
    slots = [row % (SLOTS + 1) - 1 for row in range(40)]
    tiles = ExpandTiles.of((64, 24), device)
    a, b = normal(SLOTS, 32, 144, device=device), normal(SLOTS, 88, 16, device=device)
    scales = torch.rand(SLOTS, 32, device=device)
    x, base = normal(len(slots), 144, device=device), normal(len(slots), 88, device=device)

    def run(chosen: list[int], blocks: int) -> torch.Tensor:
        index = torch.tensor(chosen, device=device)
        rows, out = gathered([slots[row] for row in chosen], device, blocks), base[index].clone()
        shrunk = torch.empty(len(chosen), 32, dtype=torch.bfloat16, device=device)
        shrink(x[index].contiguous(), a, scales, rows, shrunk)
        expand(shrunk, b, tiles, rows, out)
        return out

    together = run(list(range(40)), size)
    for row in (0, 1, 2, 17, 39):
        assert torch.equal(run([row], 16)[0], together[row])
    assert torch.equal(run(list(range(39, -1, -1)), 16).flip(0), together)
