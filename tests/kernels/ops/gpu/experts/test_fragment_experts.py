from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from slipstream_kernels.ops.gpu.experts.expert_linear import expert_linear, expert_linear_reference
from slipstream_kernels.ops.gpu.experts.fragment_experts import FragmentExperts, can_be_fragments, exponents_of
from slipstream_kernels.ops.gpu.experts.group_rows import WORDS, ExpertGroups, group_rows, most_blocks
from slipstream_kernels.ops.quantised_weight import PAIRED, QuantisedWeight, decode
from support.quantised_weights import random_weight

EXPERTS, CHOSEN = 3, 2


def random_mxfp4(outputs: int, inputs: int, seed: int, powers_from: int = -8, powers_to: int = -4) -> QuantisedWeight:
    """Every code, and powers of two."""
    weight = random_weight("e2m1", outputs, inputs, group=32, seed=seed)
    powers = torch.randint(
        powers_from, powers_to + 1, weight.scales.shape, generator=torch.Generator().manual_seed(seed)
    )
    return QuantisedWeight("e2m1", weight.codes, (2.0**powers).bfloat16(), None, 32)


def random_part(number: Any, outputs: int, inputs: int, group: int, zeros: bool, seed: int) -> QuantisedWeight:
    if number == "e2m1":
        return random_mxfp4(outputs, inputs, seed)
    return random_weight(number, outputs, inputs, group=group or inputs, zeros=zeros, seed=seed)


def rounded_scales(weight: QuantisedWeight) -> QuantisedWeight:
    """With scales that bfloat16 has."""
    return replace(weight, scales=weight.scales.bfloat16().float())


def experts_of(parts: list[QuantisedWeight], device: torch.device, group: int) -> FragmentExperts:
    first = parts[0]
    zeros = first.zeros is not None
    made = FragmentExperts.empty(first.number, (len(parts), *first.shape), group, device, zeros=zeros)
    for expert, part in enumerate(parts):
        made.put(expert, part.to(device))
    return made


@pytest.mark.parametrize(("outputs", "inputs"), [(8, 32), (48, 320), (16, 2880)])
def test_mxfp4_that_is_put_is_decoded(outputs: int, inputs: int) -> None:
    """Bit for bit, from the least scale to the greatest."""
    parts = [random_mxfp4(outputs, inputs, seed, -126, 127) for seed in range(EXPERTS)]
    held = experts_of(parts, torch.device("cpu"), 32)
    assert held.shape == (EXPERTS, outputs, inputs) and len(held) == EXPERTS
    assert held.nbytes == EXPERTS * outputs * -(-inputs // 128) * 68
    assert held.settled() is held  # exponents too great
    for expert, part in enumerate(parts):
        assert torch.equal(held.decoded(expert).view(torch.int16), decode(part).view(torch.int16))


def test_settled_weights_are_the_same() -> None:
    """Where scales have no more digits than bfloat16, or are no greater than 2."""
    device = torch.device("cpu")
    for parts, group in (
        ([random_mxfp4(16, 96, seed, -126, 1) for seed in range(EXPERTS)], 32),
        ([rounded_scales(random_part("int4", 16, 256, 128, True, seed)) for seed in range(EXPERTS)], 128),
    ):
        held = experts_of(parts, device, group).settled()
        assert held.paired and held.settled() is held and held.scales.dtype == torch.int32
        for expert, part in enumerate(parts):
            assert torch.equal(held.decoded(expert).view(torch.int16), decode(part).view(torch.int16))
    others = experts_of([random_part("int4", 16, 256, 128, True, seed) for seed in range(EXPERTS)], device, 128)
    assert others.settled() is others and not others.paired
    assert not experts_of([random_part("e4m3", 16, 256, 128, False, 0)], device, 128).settled().paired


@pytest.mark.parametrize(
    ("number", "group", "zeros"), [("int4", 128, True), ("int4", 0, False), ("e4m3", 128, False), ("int8", 64, True)]
)
def test_what_is_put_is_decoded(number: str, group: int, zeros: bool) -> None:
    parts = [random_part(number, 24, 384, group, zeros, seed) for seed in range(EXPERTS)]
    held = experts_of(parts, torch.device("cpu"), group)
    for expert, part in enumerate(parts):
        assert torch.equal(held.decoded(expert), decode(part))


def test_what_can_be_fragments() -> None:
    assert can_be_fragments("e2m1", 2880, 2880, 32) and can_be_fragments("int4", 1536, 2048, 128)
    assert can_be_fragments("int4", 8, 96, 96) and can_be_fragments("e4m3", 8, 768, 128)
    assert not can_be_fragments("e2m1", 12, 2880, 32) and not can_be_fragments("e2m1", 8, 48, 32)
    assert not can_be_fragments("int4", 8, 128, 32)


def test_exponents_of_a_chunk_lie_in_a_word() -> None:
    scales = torch.tensor([[2.0**-126, 1.0, 2.0, 2.0**127, 0.5]]).bfloat16()
    assert exponents_of(scales).tolist() == [[1 | 127 << 8 | 128 << 16 | (254 << 24) - 2**32], [126]]


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize(
    ("number", "group", "zeros", "tokens", "gated"),
    [
        ("e2m1", 32, False, 0, True),
        ("e2m1", 32, False, 16, True),
        ("e2m1", 32, False, 128, True),
        ("e2m1", 32, False, 16, False),
        ("int4", 128, True, 16, True),
        ("int4", 0, False, 0, False),
        ("e4m3", 64, False, 16, True),
        ("int8", 0, True, 16, False),
    ],
)
def test_its_products_are_those_of_the_decoded_weights(
    device: torch.device, number: str, group: int, zeros: bool, tokens: int, gated: bool, settled: bool
) -> None:
    """Columns that fill no chunk, rows that fill no program, padding, biases, factors and a clamped gate."""
    torch.manual_seed(tokens)
    rows, outputs, inputs = {0: 3, 16: 5, 128: 40}[tokens], 40, 160
    parts = [random_part(number, outputs * (2 if gated else 1), inputs, group, zeros, seed) for seed in range(EXPERTS)]
    if settled:
        if number not in PAIRED:
            pytest.skip("is as it was")
        parts = [part if number == "e2m1" else rounded_scales(part) for part in parts]
    packed = experts_of(parts, device, group)
    packed = packed.settled() if settled else packed
    assert packed.paired == settled
    plain = torch.stack([decode(part) for part in parts]).to(device)
    x = (torch.randn(rows, inputs, device=device) * 2.0 ** (0 if number == "e2m1" else -8)).bfloat16()
    ids = torch.stack([torch.randperm(EXPERTS)[:CHOSEN].sort().values for _ in range(rows)]).to(device, torch.int32)
    ids[1] = EXPERTS
    groups = None
    if tokens:
        lines = torch.empty(most_blocks(ids.numel(), EXPERTS, tokens), WORDS, dtype=torch.int32, device=device)
        groups = ExpertGroups(torch.empty(ids.numel(), dtype=torch.int32, device=device), lines, tokens)
        group_rows(ids, groups, experts=EXPERTS)
    bias = torch.randn(EXPERTS, plain.shape[1], device=device).bfloat16()
    factors = torch.rand(rows, CHOSEN, device=device)
    for options in ({}, {"bias": bias, "factors": factors}, {"bias": bias, "limit": 7.0}):
        dtype = torch.bfloat16 if gated else torch.float32
        found, expected, twin = (
            torch.full((rows * CHOSEN, outputs), torch.nan, dtype=dtype, device=device) for _ in range(3)
        )
        expert_linear(x, packed, found, ids, groups, gated=gated, **options)
        expert_linear(x, plain, expected, ids, groups, gated=gated, **options)
        expert_linear_reference(x, packed, twin, ids, gated=gated, **options)
        assert found[2:4].isnan().all()
        there = torch.arange(len(found), device=device) // CHOSEN != 1
        tolerance = 2**-7 if gated else 1e-5
        torch.testing.assert_close(found[there], twin[there], rtol=tolerance, atol=1e-3)
        torch.testing.assert_close(found[there], expected[there], rtol=tolerance, atol=1e-3)
        if device.type == "cuda":
            assert torch.equal(found[there], expected[there])
