"""`packed(x, q) == linear(x, decode(q))`, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from slipstream_kernels.ops.gpu.gate_up import interleave_gate_up
from slipstream_kernels.ops.gpu.linear import gated_linear, linear
from slipstream_kernels.ops.gpu.linear_tile import Tile
from slipstream_kernels.ops.gpu.packed.any_linear import any_gated_linear, any_linear
from slipstream_kernels.ops.gpu.packed.decode_weight import decode_weight, decode_weight_reference
from slipstream_kernels.ops.gpu.packed.packed_linear import (
    MOST_ROWS,
    ROOM_ROWS,
    packed_gated_linear,
    packed_linear,
    packed_tile,
)
from slipstream_kernels.ops.gpu.packed.packed_tile import MATRIX_ROWS, PART, PackedTile
from slipstream_kernels.ops.gpu.packed.packed_weight import (
    GROUPS,
    PackedForm,
    PackedWeight,
    can_pack,
    form_of,
    pack,
    unpacked,
)
from slipstream_kernels.ops.quantised_weight import QuantisedWeight, decode, stacked
from support.quantised_weights import random_weight

FORMS: list[dict[str, Any]] = [
    {"number": "e4m3", "group": 1 << 20},
    {"number": "e4m3", "group": 128},
    {"number": "int8", "group": 64, "zeros": True},
    {"number": "int4", "group": 128, "dtype": torch.bfloat16},
    {"number": "int4", "group": 128, "zeros": True},
    {"number": "int4", "group": 1 << 20, "zeros": True, "dtype": torch.bfloat16},
]


def name_of(form: dict[str, Any]) -> str:
    return " ".join(str(value) for value in form.values())


def make(form: dict[str, Any], outputs: int, inputs: int, **more: Any) -> QuantisedWeight:
    return random_weight(outputs=outputs, inputs=inputs, **{**form, "group": min(form["group"], inputs), **more})


def packed_of(weight: QuantisedWeight) -> PackedWeight:
    """As models hold it."""
    return pack(weight).settled()


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int16 if tensor.dtype == torch.bfloat16 else torch.int32)


def equal_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(bits(one), bits(other))


def tile_of_decoded(tile: PackedTile, *, gated: bool = False) -> Tile:
    """Whose products have the shape of the packed weight's: the interpreter's sums depend on it, a GPU's do not."""
    return Tile(MATRIX_ROWS // (2 if gated else 1), tile.tokens, PART, 1)


@pytest.mark.parametrize("form", FORMS, ids=name_of)
@pytest.mark.parametrize(("inputs", "hostile"), [(PART, True), (208, False), (48, True)])
def test_decodes_as_defined(device: torch.device, form: dict[str, Any], inputs: int, *, hostile: bool) -> None:
    weight = make(form, 40, inputs, hostile=hostile, seed=inputs).to(device)
    packed, out = packed_of(weight), torch.full((40, inputs), torch.nan, device=device).bfloat16()
    decode_weight(packed, out)
    assert equal_bits(out, decode(weight))
    assert packed.nbytes == packed.form.nbytes == packed.form.empty(device).nbytes
    assert packed.shape == weight.shape and len(packed) == 40
    assert equal_bits(decode(unpacked(packed)), out)
    part, reference = (torch.full((17, inputs), torch.nan, device=device).bfloat16() for _ in range(2))
    decode_weight(packed, part, 16)
    decode_weight_reference(packed, reference, 16)
    assert equal_bits(part, out[16:33]) and equal_bits(reference, part)
    assert packed.paired == (weight.number == "int4" and weight.scales.dtype == torch.bfloat16)


@pytest.mark.parametrize("form", FORMS, ids=name_of)
def test_every_code_at_the_ends_of_scales_and_zero_points(device: torch.device, form: dict[str, Any]) -> None:
    ends = [0.0, 2.0**-90, -(2.0**-90), 2.0**90, -(2.0**90), 1.0, 2 - 2.0**-23, -1 / 96]
    weight = make(form, 2 * len(ends), PART, dtype=torch.float32)
    codes = torch.arange(256, dtype=torch.uint8).roll(5)
    if weight.number == "e4m3":
        codes[(codes & 0x7F) == 0x7F] = 0x80
    scales = torch.tensor(ends).repeat_interleave(2)[:, None].expand(weight.scales.shape).contiguous()
    zeros = weight.zeros
    if zeros is not None:
        zeros[::2], zeros[1::2] = 0, 16 if weight.number == "int4" else 256
    weight = replace(
        weight, codes=codes[: weight.codes.shape[1]].expand(weight.codes.shape).contiguous(), scales=scales
    )
    weight = weight.to(device)
    out = torch.empty(weight.shape, device=device, dtype=torch.bfloat16)
    decode_weight(pack(weight), out)
    assert equal_bits(out, decode(weight))


@pytest.mark.parametrize("form", FORMS, ids=name_of)
@pytest.mark.parametrize(("rows", "inputs", "tile"), [(5, PART, None), (37, 208, PackedTile(24, 16, 3))])
def test_gives_the_bits_of_the_decoded_weight(
    device: torch.device, form: dict[str, Any], rows: int, inputs: int, tile: PackedTile | None
) -> None:
    torch.manual_seed(rows)
    weight = make(form, 72, inputs, seed=rows).to(device)
    packed = packed_of(weight)
    x, residual = (torch.randn(rows, n, device=device).bfloat16() for n in (inputs, 72))
    bias = torch.randn(72, device=device).bfloat16()
    like = tile_of_decoded(tile or packed_tile(packed, rows, gated=False))
    for addends in ({}, {"bias": bias, "residual": residual}) if tile is None else ({"bias": bias},):
        got, expected = (torch.full((rows, 72), torch.nan, device=device) for _ in range(2))
        packed_linear(x, packed, got, tile=tile, **addends)
        linear(x, decode(weight), expected, tile=like, **addends)
        assert not got.isnan().any()
        assert equal_bits(got, expected)


@pytest.mark.parametrize("form", [FORMS[1], FORMS[4]], ids=name_of)
@pytest.mark.parametrize("rows", [1, 21])
def test_gated(device: torch.device, form: dict[str, Any], rows: int) -> None:
    torch.manual_seed(rows)
    gate, up = (
        make(form, 48, PART, seed=seed, dtype=dtype) for seed, dtype in ((1, torch.float16), (2, torch.float32))
    )
    both = stacked([gate, up])
    assert both is not None
    order = interleave_gate_up(torch.arange(96)[:, None]).flatten()
    weight = both.rows(order).to(device)
    expected_weight = interleave_gate_up(torch.cat([decode(gate), decode(up)])).to(device)
    assert equal_bits(decode(weight), expected_weight)
    packed, x = packed_of(weight), torch.randn(rows, PART, device=device).bfloat16()
    tile = packed_tile(packed, rows, gated=True)
    got, expected = (torch.full((rows, 48), torch.nan, device=device).bfloat16() for _ in range(2))
    packed_gated_linear(x, packed, got, tile=tile)
    gated_linear(x, expected_weight, expected, tile=tile_of_decoded(tile, gated=True))
    assert equal_bits(got, expected)


def test_fused_parts_keep_scales_of_their_own(device: torch.device) -> None:
    per_tensor = random_weight("e4m3", 48, PART, group=PART, seed=1)
    per_tensor = replace(per_tensor, scales=per_tensor.scales[:1].expand(48, 1).contiguous())
    parts = [per_tensor, random_weight("e4m3", 16, PART, group=PART, seed=2, dtype=torch.float32)]
    parts.append(random_weight("e4m3", 16, PART, group=128, seed=3, dtype=torch.bfloat16))
    whole = stacked(parts)
    assert whole is not None
    packed, x = packed_of(whole.to(device)), torch.randn(7, PART, device=device).bfloat16()
    weight = torch.cat([decode(part) for part in parts]).to(device)
    tile = packed_tile(packed, 7, gated=False)
    got, expected = (torch.full((7, 80), torch.nan, device=device) for _ in range(2))
    packed_linear(x, packed, got, tile=tile)
    linear(x, weight, expected, tile=tile_of_decoded(tile))
    assert equal_bits(got, expected)


def test_many_rows_take_the_decoded_weight(device: torch.device) -> None:
    """In two parts, the room being smaller than the weight."""
    weight = make(FORMS[4], 2 * ROOM_ROWS - 16, PART).to(device)
    x = torch.randn(MOST_ROWS + 1, PART, device=device).bfloat16()
    room = torch.full((ROOM_ROWS * PART + 5,), torch.nan, device=device).bfloat16()
    packed = replace(packed_of(weight), room=room[:-5])
    bias, residual = torch.randn(len(weight.codes), device=device).bfloat16(), torch.randn(len(x), len(weight.codes))
    addends = {"bias": bias, "residual": residual.to(device).bfloat16()}
    got, expected = (torch.full((len(x), len(bias)), torch.nan, device=device).bfloat16() for _ in range(2))
    any_linear(linear)(x, packed, got, **addends)
    linear(x, decode(weight), expected, **addends)
    assert equal_bits(got, expected)
    got, expected = (each[:, : len(bias) // 2].contiguous() for each in (got, expected))
    any_gated_linear(gated_linear)(x, packed, got)
    gated_linear(x, decode(weight), expected)
    assert equal_bits(got, expected)
    assert room[-5:].isnan().all()


@pytest.mark.parametrize("form", [FORMS[0], FORMS[3]], ids=name_of)
def test_what_lies_beyond_rows_and_outputs_is_left_alone(device: torch.device, form: dict[str, Any]) -> None:
    packed = packed_of(make(form, 24, PART).to(device))
    memory = torch.randn(9, PART, device=device).bfloat16()
    memory[5:] = torch.nan
    out = torch.full((9, 40), torch.nan, device=device).bfloat16()
    packed_linear(memory[:5], packed, out[:5, 8:32])
    assert not out[:5, 8:32].isnan().any()
    assert out[5:].isnan().all() and out[:, :8].isnan().all() and out[:, 32:].isnan().all()


def test_which_weights_have_kernels() -> None:
    assert can_pack("e4m3", 4096, 4096)
    assert can_pack("int8", 4096, 64)
    assert can_pack("int4", 4096, 128)
    assert not can_pack("int4", 4096, 64)
    assert not can_pack("int8", 40, 40)


@pytest.mark.parametrize("form", FORMS, ids=name_of)
def test_rows_are_picked_from_a_packed_weight(form: dict[str, Any]) -> None:
    weight = make(form, 40, 208)
    picked = torch.tensor([39, 3, 3, 17])
    for index in (picked, slice(0, 21)):
        part = packed_of(weight).rows(index)
        assert equal_bits(decode(unpacked(part)), decode(weight)[index])


def test_parts_take_the_groups_and_zero_points_of_the_whole() -> None:
    whole_rows = random_weight("int8", 16, 256, group=256)
    form = replace(form_of(whole_rows), group=64, zeros=True)
    assert equal_bits(decode(unpacked(pack(whole_rows, form))), decode(whole_rows))


@pytest.mark.parametrize("number", ["e4m3", "int8", "int4"])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("rows", [1, 16, 32, 64])
def test_tiles_fit_shared_memory(number: Any, rows: int, *, gated: bool) -> None:
    for outputs, inputs in ((4096, 14336), (6144, 4096), (28672, 4096), (128256, 4096)):
        for group in (0, *GROUPS[number]):
            weight = PackedForm(number, outputs, inputs, group, zeros=number != "e4m3").empty("meta")
            assert packed_tile(weight, rows, gated=gated).shared_memory(weight, gated) <= 220 * 1024
