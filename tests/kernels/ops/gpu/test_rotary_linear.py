from __future__ import annotations

import pytest
import torch

from slipstream_kernels.ops.gpu.linear import linear
from slipstream_kernels.ops.gpu.linear_tile import Tile
from slipstream_kernels.ops.gpu.rotary import rotary_write
from slipstream_kernels.ops.gpu.rotary_linear import (
    MOST_ROWS,
    fused_tile,
    in_two_steps,
    rotary_linear,
    rotary_linear_reference,
)
from slipstream_kernels.ops.rope import Rope

SLOTS = 50
TWO_STEPS = in_two_steps(linear, rotary_write)


class Case:
    """Random rows and weights, of which the second row is padding. All sums are exact, whatever their order."""

    def __init__(self, rows: int, heads: int, kv_heads: int, head_dim: int, inputs: int, device: torch.device) -> None:
        torch.manual_seed(rows * heads + head_dim)
        self.shape, self.device, outputs = (heads, kv_heads, head_dim), device, (heads + 2 * kv_heads) * head_dim

        def exact(*shape: int) -> torch.Tensor:
            return (torch.randint(-16, 17, shape, device=device) / 8).bfloat16()

        self.x = exact(rows, inputs)
        self.weight = exact(outputs, inputs)
        self.bias = exact(outputs)
        self.positions = torch.randint(0, 300, (rows,), dtype=torch.int32, device=device)
        self.slots = torch.randperm(SLOTS, device=device)[:rows].to(torch.int32)
        self.slots[1:2] = -1
        self.table = torch.from_numpy(Rope(10_000.0).table(300, head_dim)).to(device)

    def run(self, op, **options) -> tuple[torch.Tensor, ...]:
        """q_out, keys and values, NaN where nothing was written."""
        heads, kv_heads, head_dim = self.shape
        rows = len(self.x)
        qkv = torch.full((rows, len(self.weight)), torch.nan, dtype=torch.bfloat16, device=self.device)
        store = [
            torch.full((*shape, head_dim), torch.nan, dtype=torch.bfloat16, device=self.device)
            for shape in ((rows, heads), (kv_heads, SLOTS), (kv_heads, SLOTS))
        ]
        op(self.x, self.weight, self.positions, self.slots, self.table, qkv, *store, **options)
        return tuple(store)


def bits(tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors]).view(torch.int16)


@pytest.mark.parametrize(
    ("rows", "heads", "kv_heads", "head_dim", "inputs", "tile", "biased"),
    [
        (5, 3, 1, 128, 96, Tile(outputs=48, tokens=16, depth=64, stages=3, prefetch=1024), True),
        (18, 3, 2, 64, 48, Tile(outputs=64, tokens=16, depth=32, stages=2), False),
        (1, 4, 1, 64, 32, None, True),
    ],
)
def test_bits_are_those_of_two_steps(
    device, rows: int, heads: int, kv_heads: int, head_dim: int, inputs: int, tile: Tile | None, *, biased: bool
) -> None:
    case = Case(rows, heads, kv_heads, head_dim, inputs, device)
    bias = case.bias if biased else None
    written = case.run(rotary_linear, tile=tile, bias=bias)
    assert torch.equal(bits(written), bits(case.run(TWO_STEPS, bias=bias)))
    assert written[0].isfinite().all()
    assert int(written[1].isfinite().all(-1).sum()) == kv_heads * int((case.slots >= 0).sum())


def test_one_kernel_writes_no_result_between(device) -> None:
    case = Case(1, 2, 1, 64, 64, device)
    qkv = torch.full((1, 256), torch.nan, dtype=torch.bfloat16, device=device)

    def op(x, weight, positions, slots, table, _, *store):
        rotary_linear(x, weight, positions, slots, table, qkv, *store)

    case.run(op)
    assert qkv.isnan().all()


def test_matches_its_twin(device) -> None:
    case = Case(3, 2, 1, 64, 64, device)
    for found, wanted in zip(
        case.run(rotary_linear, bias=case.bias), case.run(rotary_linear_reference, bias=case.bias), strict=True
    ):
        seen = ~wanted.isnan()
        assert torch.equal(seen, ~found.isnan())
        assert float((found[seen].double() - wanted[seen].double()).norm() / wanted[seen].double().norm()) < 4e-3


def test_norms_of_heads_take_two_kernels(device) -> None:
    case = Case(3, 2, 1, 64, 64, device)
    norms = {"q_norm": case.bias[:64], "k_norm": case.bias[64:128], "eps": 1e-6}
    assert torch.equal(bits(case.run(rotary_linear, **norms)), bits(case.run(TWO_STEPS, **norms)))


def test_many_rows_take_two_kernels(device) -> None:
    assert fused_tile(640, 384, MOST_ROWS, device) is not None
    assert fused_tile(640, 384, MOST_ROWS + 1, device) is None
