"""Adapters of queries, keys and values beside their rotation: bits are those of the two."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from slipstream_kernels.ops.gpu.lora.adapter_rows import AdapterRows, gather_adapter_rows_reference
from slipstream_kernels.ops.gpu.lora.expand import ExpandTiles, expand
from slipstream_kernels.ops.gpu.lora.expand_rotary import expand_rotary, expand_rotary_reference, in_two_steps
from slipstream_kernels.ops.gpu.rotary import rotary_write
from slipstream_kernels.ops.rope import Rope

ADAPTERS, PLACES = 3, 50


@pytest.mark.parametrize(
    ("rows", "heads", "kv_heads", "head_dim", "rank", "size", "normed"),
    [
        (7, 3, 1, 64, 16, 16, False),
        (20, 2, 1, 128, 24, 16, False),
        (3, 2, 2, 64, 72, 4, False),
        (3, 2, 1, 64, 8, 4, True),
    ],
)
def test_bits_are_those_of_two_steps(
    device: torch.device, rows: int, heads: int, kv_heads: int, head_dim: int, rank: int, size: int, *, normed: bool
) -> None:
    """The second row is padding, and has no adapter."""
    generator = torch.Generator().manual_seed(rows * rank)
    outputs = (heads + 2 * kv_heads) * head_dim

    def exact(*shape: int) -> torch.Tensor:
        """Whose sums are exact, whatever their order."""
        return (torch.randint(-16, 17, shape, generator=generator) / 8).bfloat16().to(device)

    x, b, qkv = exact(rows, 3 * rank), exact(ADAPTERS, outputs, rank), exact(rows, outputs)
    positions = torch.randint(0, 300, (rows,), dtype=torch.int32, generator=generator).to(device)
    places = torch.randperm(PLACES, generator=generator)[:rows].to(torch.int32).to(device)
    places[1:2] = -1
    table = torch.from_numpy(Rope(10_000.0).table(300, head_dim)).to(device)
    slots = torch.tensor([(2, -1, 0, 2, 1)[row % 5] for row in range(rows)], dtype=torch.int32, device=device)
    gathered = AdapterRows.empty(rows, ADAPTERS, size, device)
    lines = torch.arange(rows, dtype=torch.int32, device=device)
    gather_adapter_rows_reference(lines, places, slots, ADAPTERS, gathered)
    tiles = ExpandTiles.of((heads * head_dim, kv_heads * head_dim, kv_heads * head_dim), device)
    norms = {"q_norm": exact(head_dim), "k_norm": exact(head_dim), "eps": 1e-5} if normed else {}

    def run(op: Any) -> list[torch.Tensor]:
        """q_out, keys and values, NaN where nothing was written."""
        store = [
            torch.full((*shape, head_dim), torch.nan, dtype=torch.bfloat16, device=device)
            for shape in ((rows, heads), (kv_heads, PLACES), (kv_heads, PLACES))
        ]
        op(x, b, tiles, gathered, qkv.clone(), positions, places, table, *store, **norms)
        return [each.cpu() for each in store]

    found, expected = run(expand_rotary), run(in_two_steps(expand, rotary_write))
    for one, other, twin in zip(found, expected, run(expand_rotary_reference), strict=True):
        assert torch.equal(one.view(torch.int16), other.view(torch.int16))
        assert torch.allclose(one, twin, rtol=2**-6, atol=2**-6, equal_nan=True)
    assert not found[0].isnan().any()
    assert int((~found[1][0, :, 0].isnan()).sum()) == rows - 1
