from __future__ import annotations

import pytest
import torch

from slipstream_kernels.ops.gpu.experts.expert_linear import expert_linear, expert_linear_reference
from slipstream_kernels.ops.gpu.experts.group_rows import WORDS, ExpertGroups, group_rows, most_blocks
from slipstream_kernels.ops.gpu.experts.packed_experts import PackedExperts, can_pack_experts
from slipstream_kernels.ops.gpu.gate_up import interleave_gate_up
from slipstream_kernels.ops.gpu.linear import linear
from slipstream_kernels.ops.gpu.linear_tile import Tile
from slipstream_kernels.ops.quantised_weight import decode
from support.quantised_weights import random_weight

EXPERTS, INPUTS, OUTPUTS = 3, 80, 48


def groups_of(ids: torch.Tensor, tokens: int) -> ExpertGroups:
    blocks = most_blocks(ids.numel(), EXPERTS, tokens)
    order, lines = (
        torch.empty(shape, dtype=torch.int32, device=ids.device) for shape in ((ids.numel(),), (blocks, WORDS))
    )
    groups = ExpertGroups(order, lines, tokens)
    group_rows(ids, groups, experts=EXPERTS)
    return groups


def operands(device: torch.device, rows: int, outputs: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(rows)
    x = torch.randn(rows, INPUTS, device=device).bfloat16()
    weight = torch.randn(EXPERTS, outputs, INPUTS, device=device).bfloat16()
    ids = torch.stack([torch.randperm(EXPERTS)[:2].sort().values for _ in range(rows)]).to(device, torch.int32)
    return x, weight, ids


@pytest.mark.parametrize("rows", [1, 21])
@pytest.mark.parametrize("tokens", [0, 16])
@pytest.mark.parametrize("gated", [True, False])
def test_matches_its_twin(device: torch.device, rows: int, tokens: int, gated: bool) -> None:
    x, weight, ids = operands(device, rows, 2 * OUTPUTS if gated else OUTPUTS)
    if gated:
        weight = torch.stack([interleave_gate_up(each) for each in weight])
    groups = groups_of(ids, tokens) if tokens else None
    dtype = torch.bfloat16 if gated else torch.float32
    out, expected = (torch.full((2 * rows, OUTPUTS), torch.nan, dtype=dtype, device=device) for _ in range(2))
    expert_linear(x, weight, out, ids, groups, gated=gated)
    expert_linear_reference(x, weight, expected, ids, gated=gated)
    torch.testing.assert_close(out, expected, rtol=2**-7 if gated else 1e-5, atol=1e-5)


@pytest.mark.parametrize("limit", [0.0, 1.5])
def test_biases_and_a_clamped_gate(device: torch.device, limit: float) -> None:
    x, weight, ids = operands(device, 5, 2 * OUTPUTS)
    bias = torch.randn(EXPERTS, 2 * OUTPUTS, device=device).bfloat16()
    out, expected = (torch.full((10, OUTPUTS), torch.nan, dtype=torch.bfloat16, device=device) for _ in range(2))
    expert_linear(x, weight, out, ids, groups_of(ids, 16), gated=True, bias=bias, limit=limit)
    expert_linear_reference(x, weight, expected, ids, gated=True, bias=bias, limit=limit)
    torch.testing.assert_close(out, expected, rtol=2**-7, atol=1e-5)
    sums, plain = (torch.full((10, 2 * OUTPUTS), torch.nan, device=device) for _ in range(2))
    expert_linear(x, weight, sums, ids, bias=bias)
    expert_linear_reference(x, weight, plain, ids, bias=bias)
    torch.testing.assert_close(sums, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tokens", [0, 16])
def test_what_pairs_read_may_be_weighed(device: torch.device, tokens: int) -> None:
    """As rows that are multiplied before; a factor of 1 changes no bit."""
    x, weight, ids = operands(device, 5, 2 * OUTPUTS)
    factors = torch.tensor([[0.5, 1.0]], device=device).repeat(5, 1)
    groups = groups_of(ids, tokens) if tokens else None
    out, expected, plain = (torch.full((10, OUTPUTS), torch.nan, device=device) for _ in range(3))
    expert_linear(x, weight, out, ids, groups, gated=True, factors=factors)
    expert_linear_reference(x, weight, expected, ids, gated=True, factors=factors)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    expert_linear(x, weight, plain, ids, groups, gated=True)
    assert torch.equal(out[1::2], plain[1::2])
    halved = torch.stack([x * 0.5, x], 1).flatten(0, 1)
    expert_linear(halved, weight, plain, ids, groups, gated=True)
    torch.testing.assert_close(out, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("number", "group", "zeros", "tokens"),
    [
        ("int4", 32, False, 16),
        ("e4m3", 128, False, 16),
        ("int4", 64, True, 0),
        ("int8", 0, True, 16),
        ("e4m3", 0, False, 0),
    ],
)
def test_packed_weights_are_decoded(device: torch.device, number: str, group: int, zeros: bool, tokens: int) -> None:
    """As the linear layer of the decoded weights; columns that fill no step of decoding."""
    inputs = 384 if group == 128 else 320
    _, _, ids = operands(device, 4, OUTPUTS)
    x = torch.randn(4, inputs, device=device).bfloat16()
    parts = [
        random_weight(number, OUTPUTS, inputs, group=group or inputs, zeros=zeros, seed=seed) for seed in range(EXPERTS)
    ]
    packed = PackedExperts.empty(number, (EXPERTS, OUTPUTS, inputs), group, device, zeros=zeros)
    for expert, part in enumerate(parts):
        packed.codes[expert].copy_(part.codes)
        packed.scales[expert].copy_(part.scales)
        if packed.zeros is not None and part.zeros is not None:
            packed.zeros[expert].copy_(part.zeros)
    plain = torch.stack([packed.decoded(expert) for expert in range(EXPERTS)])
    assert torch.equal(plain.cpu(), torch.stack([decode(part) for part in parts]))
    groups = groups_of(ids, tokens) if tokens else None
    found, expected = (torch.full((8, OUTPUTS), torch.nan, device=device) for _ in range(2))
    expert_linear(x, packed, found, ids, groups)
    expert_linear(x, plain, expected, ids, groups)
    assert (found - expected).norm() < 1e-6 * expected.norm()
    if device.type == "cuda":
        assert torch.equal(found, expected)
    expert_linear_reference(x, packed, expected, ids)
    assert (found - expected).norm() < 1e-6 * expected.norm()


def test_what_can_be_packed() -> None:
    assert can_pack_experts(2880, 32) and can_pack_experts(768, 128) and can_pack_experts(96, 96)
    assert not can_pack_experts(2880, 128) and not can_pack_experts(48, 48) and not can_pack_experts(512, 256)


def test_a_row_for_each_pair(device: torch.device) -> None:
    """As behind the gate; outputs that a tile does not divide."""
    _, weight, ids = operands(device, 9, OUTPUTS)
    x = torch.randn(18, INPUTS, device=device).bfloat16()
    out, expected = (torch.full((18, OUTPUTS), torch.nan, device=device) for _ in range(2))
    expert_linear(x, weight, out, ids, groups_of(ids, 16), tile=Tile(40, 16, 32, 2))
    expert_linear_reference(x, weight, expected, ids)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tile", [None, Tile(32, 16, 64, 3), Tile(48, 32, 32, 2)])
def test_pairs_have_the_bits_of_a_linear_layer_of_one_row(device: torch.device, tile: Tile | None) -> None:
    """However they are grouped; in the interpreter sums are ordered by a library, by the block's shape."""
    x, weight, ids = operands(device, 7, OUTPUTS)
    alone, grouped, plain = (torch.empty(14, OUTPUTS, device=device) for _ in range(3))
    expert_linear(x, weight, alone, ids, tile=tile)
    expert_linear(x, weight, grouped, ids, groups_of(ids, 16 if tile is None else tile.tokens), tile=tile)
    for pair, expert in enumerate(ids.flatten().tolist()):
        linear(x[pair // 2 : pair // 2 + 1], weight[expert], plain[pair : pair + 1])
    torch.testing.assert_close(grouped, plain, rtol=1e-5, atol=1e-5)
    if device.type == "cuda":
        assert torch.equal(alone, plain) and torch.equal(grouped, plain)


@pytest.mark.parametrize("op", [expert_linear, expert_linear_reference])
@pytest.mark.parametrize("tokens", [0, 16])
def test_pairs_of_no_expert_are_left_alone(device: torch.device, op, tokens: int) -> None:
    """As those of padding, grouped or not."""
    x, weight, ids = operands(device, 5, OUTPUTS)
    expected = torch.full((10, OUTPUTS), torch.nan, device=device)
    op(x, weight, expected, ids)
    ids[[0, 3]] = EXPERTS
    out = torch.full_like(expected, torch.nan)
    op(x, weight, out, ids, groups_of(ids, tokens) if tokens else None)
    assert out.view(5, -1)[[0, 3]].isnan().all()
    torch.testing.assert_close(out.view(5, -1)[[1, 2, 4]], expected.view(5, -1)[[1, 2, 4]], rtol=1e-5, atol=1e-5)
