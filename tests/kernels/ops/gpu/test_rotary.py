from __future__ import annotations

import pytest
import torch

from slipstream_kernels.ops.gpu.rotary import rotary_write, rotary_write_reference
from slipstream_kernels.ops.rope import Rope

OPS = [rotary_write, rotary_write_reference]
SLOTS = 20


class Case:
    """Random rows, an empty store and what float64 makes of them."""

    def __init__(self, rows: int, heads: int, kv_heads: int, head_dim: int, device: torch.device) -> None:
        torch.manual_seed(rows * heads + head_dim)
        self.heads, self.kv_heads, self.head_dim, self.device = heads, kv_heads, head_dim, device
        self.qkv = torch.randn(rows, (heads + 2 * kv_heads) * head_dim, dtype=torch.bfloat16, device=device)
        self.positions = torch.randint(0, 300, (rows,), dtype=torch.int32, device=device)
        self.slots = torch.randperm(SLOTS, device=device)[:rows].to(torch.int32)
        self.table = torch.from_numpy(Rope(10_000.0).table(300, head_dim)).to(device)
        self.norms = [torch.randn(head_dim, device=device).bfloat16() for _ in range(2)]

    def run(self, op, rows: slice = slice(None), *, normalised: bool) -> tuple[torch.Tensor, ...]:
        """q_out, keys and values, NaN where nothing was written."""
        qkv = self.qkv[rows]
        q_out = self.empty(len(qkv), self.heads)
        keys, values = self.empty(self.kv_heads, SLOTS), self.empty(self.kv_heads, SLOTS)
        norms = {"q_norm": self.norms[0], "k_norm": self.norms[1], "eps": 1e-6} if normalised else {}
        op(qkv, self.positions[rows], self.slots[rows], self.table, q_out, keys, values, **norms)
        return q_out, keys, values

    def empty(self, *shape: int) -> torch.Tensor:
        return torch.full((*shape, self.head_dim), torch.nan, dtype=torch.bfloat16, device=self.device)

    def expected(self, *, normalised: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values [rows, heads, head_dim] in float64."""
        q, k, v = self.qkv.double().unflatten(1, (-1, self.head_dim)).split([self.heads, *[self.kv_heads] * 2], dim=1)
        if normalised:
            q, k = (self.normalised(x, weight) for x, weight in zip((q, k), self.norms, strict=True))
        return self.rotated(q), self.rotated(k), v

    def normalised(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()

    def rotated(self, x: torch.Tensor) -> torch.Tensor:
        half = self.head_dim // 2
        angles = self.table.double()[self.positions.long(), None, :half]
        sines = self.table.double()[self.positions.long(), None, half:]
        turned = torch.complex(x[..., :half], x[..., half:]) * torch.complex(angles, sines)
        return torch.cat([turned.real, turned.imag], dim=-1)


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(3, 1, 128), (4, 2, 64), (9, 3, 64)])
@pytest.mark.parametrize("op", OPS)
def test_matches_float64(device, heads: int, kv_heads: int, head_dim: int, op, *, normalised: bool) -> None:
    case = Case(5, heads, kv_heads, head_dim, device)
    q_out, keys, values = case.run(op, normalised=normalised)
    q, k, v = case.expected(normalised=normalised)
    slots = case.slots.long()
    # A rounding to bfloat16 is 2^-8 of a value at most and 0.0017 of a vector's norm; norms add another.
    assert difference(q_out, q) < 2e-3 * (2 if normalised else 1)
    assert difference(keys[:, slots].transpose(0, 1), k) < 2e-3 * (2 if normalised else 1)
    assert torch.equal(values[:, slots].transpose(0, 1).double(), v)
    untouched = [slot for slot in range(SLOTS) if slot not in slots.tolist()]
    assert keys[:, untouched].isnan().all() and values[:, untouched].isnan().all()


@pytest.mark.parametrize("normalised", [False, True])
def test_rows_stand_alone(device, *, normalised: bool) -> None:
    case = Case(6, 4, 2, 64, device)
    q_out, keys, values = case.run(rotary_write, normalised=normalised)
    for row in range(6):
        alone_q, alone_k, alone_v = case.run(rotary_write, slice(row, row + 1), normalised=normalised)
        slot = int(case.slots[row])
        assert torch.equal(alone_q[0], q_out[row])
        assert torch.equal(alone_k[:, slot], keys[:, slot]) and torch.equal(alone_v[:, slot], values[:, slot])


@pytest.mark.parametrize("op", OPS)
def test_padding_rows_write_no_keys_and_values(device, op) -> None:
    case = Case(4, 3, 1, 64, device)
    case.slots[1] = case.slots[3] = -1
    case.qkv[3] = torch.nan
    _, keys, values = case.run(op, normalised=False)
    written = sorted(case.slots[[0, 2]].tolist())
    for store in (keys, values):
        assert [slot for slot in range(SLOTS) if not store[:, slot].isnan().any()] == written


@pytest.mark.parametrize("op", OPS)
def test_stays_within_its_layer(device, op) -> None:
    case = Case(3, 3, 1, 64, device)
    keys, values = case.empty(3, 1, SLOTS), case.empty(3, 1, SLOTS)
    op(case.qkv, case.positions, case.slots, case.table, case.empty(3, 3), keys[1], values[1])
    for store in (keys, values):
        assert store[[0, 2]].isnan().all()
        assert store[1][:, case.slots.long()].isfinite().all()


def test_refuses_one_norm(device) -> None:
    case = Case(1, 3, 1, 64, device)
    store = case.empty(1, SLOTS)
    with pytest.raises(ValueError, match="both or neither"):
        rotary_write(
            case.qkv, case.positions, case.slots, case.table, case.empty(1, 3), store, store, q_norm=case.norms[0]
        )
