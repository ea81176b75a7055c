"""A layer and its adapters' first products as one kernel: bits are those of the two."""

from __future__ import annotations

import pytest
import torch

from slipstream_kernels.ops.gpu.linear import linear
from slipstream_kernels.ops.gpu.linear_tile import SHARED_MEMORY, Tile
from slipstream_kernels.ops.gpu.lora.adapter_rows import AdapterRows, gather_adapter_rows_reference
from slipstream_kernels.ops.gpu.lora.shrink import shrink
from slipstream_kernels.ops.gpu.lora.shrinking_linear import (
    MOST_ROWS,
    in_two_steps,
    shrinking_linear,
    shrinking_linear_reference,
    tile_of,
)

ADAPTERS, RANKS, OUTPUTS = 4, 8, 88
STREAMED = Tile(outputs=48, tokens=16, depth=64, stages=3, prefetch=1024)
BLOCKS = Tile(outputs=64, tokens=64, depth=64, stages=3, descriptors=True, prefetch=1024)
TOKENS_FIRST = Tile(outputs=32, tokens=64, depth=64, stages=3, descriptors=True, tokens_first=True)


class Case:
    """Random rows with adapters 2 and 0, or none, of four. All sums are exact, whatever their order."""

    def __init__(self, rows: int, inputs: int, device: torch.device, ranks: int = RANKS) -> None:
        generator = torch.Generator().manual_seed(rows + inputs)

        def exact(*shape: int) -> torch.Tensor:
            return (torch.randint(-16, 17, shape, generator=generator) / 8).bfloat16().to(device)

        self.x, self.weight = exact(rows, inputs), exact(OUTPUTS, inputs)
        self.a = exact(ADAPTERS, ranks, inputs)
        self.bias, self.residual = exact(OUTPUTS), exact(rows, OUTPUTS)
        self.scales = torch.rand(ADAPTERS, ranks, generator=generator).to(device)
        self.slots = [(2, -1, 0)[row % 3] for row in range(rows)]
        self.rows = AdapterRows.empty(rows, ADAPTERS, 16, device)
        lines = torch.arange(rows, dtype=torch.int32, device=device)
        slots = torch.tensor(self.slots, dtype=torch.int32, device=device)
        gather_adapter_rows_reference(lines, lines, slots, ADAPTERS, self.rows)

    def run(self, op, dtype: torch.dtype = torch.bfloat16, **more) -> torch.Tensor:
        """The layer's output beside what is shrunk, NaN where nothing is written."""
        out, shrunk = (
            torch.full((len(self.x), columns), torch.nan, dtype=kind, device=self.x.device)
            for columns, kind in ((OUTPUTS, dtype), (self.a.shape[1], torch.bfloat16))
        )
        op(self.x, self.weight, out, self.a, self.scales, self.rows, shrunk, **more)
        return torch.cat([out.float(), shrunk.float()], dim=1).cpu()


@pytest.mark.parametrize(
    ("rows", "inputs", "tile"),
    [(13, 96, STREAMED), (20, 64, STREAMED), (40, 176, BLOCKS), (70, 128, TOKENS_FIRST), (3, 64, None), (70, 48, None)],
)
def test_bits_are_those_of_two_steps(device: torch.device, rows: int, inputs: int, tile: Tile | None) -> None:
    case = Case(rows, inputs, device)
    for dtype, more in ((torch.bfloat16, {"residual": case.residual}), (torch.float32, {"bias": case.bias})):
        found = case.run(shrinking_linear, dtype, tile=tile, **more)
        expected = case.run(in_two_steps(linear, shrink), dtype, **more)
        assert torch.equal(found.view(torch.int32), expected.view(torch.int32))
        shrunk = found[:, OUTPUTS:]
        assert [bool(row.isnan().all()) for row in shrunk] == [slot < 0 for slot in case.slots]
        assert not found[:, :OUTPUTS].isnan().any() and not shrunk[::3].isnan().any()
        twin = case.run(shrinking_linear_reference, dtype, **more)
        assert torch.allclose(found, twin, rtol=2**-7, equal_nan=True)


def test_many_rows_of_adapters_share_a_program(device: torch.device) -> None:
    case = Case(40, 64, device, ranks=24)
    found, expected = case.run(shrinking_linear, tile=BLOCKS), case.run(in_two_steps(linear, shrink))
    assert torch.equal(found.view(torch.int32), expected.view(torch.int32))


def test_many_rows_are_two_kernels(device: torch.device) -> None:
    case = Case(MOST_ROWS + 1, 32, device)
    assert tile_of(OUTPUTS, 32, MOST_ROWS + 1, ADAPTERS * RANKS, gated=False, device=device) is None
    found, expected = case.run(shrinking_linear), case.run(in_two_steps(linear, shrink))
    assert torch.equal(found.view(torch.int32), expected.view(torch.int32))


@pytest.mark.parametrize("rows", [1, 16, 17, 64, 65, 128])
@pytest.mark.parametrize(
    ("outputs", "inputs", "ranks", "gated"),
    [(6144, 4096, 48, False), (4096, 4096, 16, False), (28672, 4096, 32, True), (4096, 14336, 16, False)],
)
def test_tiles_have_room_for_all_adapters(
    device: torch.device, rows: int, outputs: int, inputs: int, ranks: int, *, gated: bool
) -> None:
    tile = tile_of(outputs, inputs, rows, 16 * ranks, gated=gated, device=device)
    assert tile is not None and tile.tokens >= min(rows, 64) and tile.shared_memory(gated=False) <= SHARED_MEMORY
    programs = -(-outputs // tile.outputs)
    spare = 64 if tile.descriptors else tile.weight_rows(gated=False) - tile.outputs
    assert 0 < 16 * ranks <= spare * programs
    assert tile_of(outputs, inputs, rows, 1024 * ranks * 8, gated=gated, device=device) is None


def test_more_adapters_have_room_beside_fewer_stages(device: torch.device) -> None:
    few, many = (tile_of(6144, 4096, 64, count * 48, gated=False, device=device) for count in (16, 64))
    assert few is not None and many is not None
    assert few.stages > many.stages > 1
