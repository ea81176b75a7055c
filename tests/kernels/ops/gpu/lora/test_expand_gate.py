"""Adapters of a gated layer beside its gate: bits are those of the two."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from slipstream_kernels.ops.gpu.lora.adapter_rows import AdapterRows, gather_adapter_rows_reference
from slipstream_kernels.ops.gpu.lora.expand import ExpandTiles, expand
from slipstream_kernels.ops.gpu.lora.expand_gate import expand_gate, expand_gate_reference
from slipstream_kernels.ops.gpu.silu_mul import silu_mul

ADAPTERS = 3


def in_two_steps(
    x: torch.Tensor, b: torch.Tensor, tiles: ExpandTiles, rows: AdapterRows, gate_up: torch.Tensor, out: torch.Tensor
) -> None:
    expand(x, b, tiles, rows, gate_up)
    silu_mul(gate_up, out)


@pytest.mark.parametrize(("rows", "rank", "size"), [(7, 16, 16), (18, 24, 16), (3, 72, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_are_those_of_two_steps(device: torch.device, rows: int, rank: int, size: int, dtype: torch.dtype) -> None:
    """The second row has no adapter."""
    generator, outputs = torch.Generator().manual_seed(rows * rank), 152

    def exact(*shape: int) -> torch.Tensor:
        """Whose sums are exact, whatever their order."""
        return (torch.randint(-16, 17, shape, generator=generator) / 8).bfloat16().to(device)

    x, b = exact(rows, 2 * rank), exact(ADAPTERS, 2 * outputs, rank)
    gate_up = torch.randn(rows, 2 * outputs, generator=generator).to(device, dtype)
    lines = torch.arange(rows, dtype=torch.int32, device=device)
    slots = torch.tensor([(2, -1, 0, 2, 1)[row % 5] for row in range(rows)], dtype=torch.int32, device=device)
    gathered = AdapterRows.empty(rows, ADAPTERS, size, device)
    gather_adapter_rows_reference(lines, lines, slots, ADAPTERS, gathered)
    tiles = ExpandTiles.of((outputs, outputs), device, grouped=True)

    def run(op: Any) -> torch.Tensor:
        out = torch.full((rows, outputs), torch.nan, dtype=torch.bfloat16, device=device)
        op(x, b, tiles, gathered, gate_up.clone(), out)
        return out.cpu()

    found, expected, twin = run(expand_gate), run(in_two_steps), run(expand_gate_reference)
    assert torch.equal(found.view(torch.int16), expected.view(torch.int16))
    assert torch.allclose(found, twin, rtol=2**-6, atol=2**-6)
    assert not torch.equal(found[0], run(lambda *all_: silu_mul(*all_[-2:]))[0])
    assert torch.equal(found[1], run(lambda *all_: silu_mul(*all_[-2:]))[1])
