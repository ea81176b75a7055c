"""Rounded weights decode to what is nearest."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from slipstream_kernels.ops.quantised_weight import decode, implied_zero
from slipstream_kernels.ops.round_weight import round_weight


@pytest.mark.parametrize(("number", "most"), [("e4m3", 0.03), ("int8", 0.012), ("int4", 0.18), ("e2m1", 0.16)])
@pytest.mark.parametrize(("inputs", "group"), [(96, 96), (128, 32), (160, 64), (64, 1024)])
def test_numbers_are_near(number: Any, most: float, inputs: int, group: int) -> None:
    weight = torch.randn(24, inputs, generator=torch.Generator().manual_seed(inputs)).bfloat16()
    weight[3] = 0
    rounded = round_weight(weight, number, group)
    assert rounded.shape == weight.shape and rounded.scales.shape == (24, -(-inputs // min(group, inputs)))
    error = (decode(rounded).float() - weight.float()).norm() / weight.float().norm()
    assert most / 10 < error < most
    assert not decode(rounded)[3].any()


def test_what_is_a_number_stays() -> None:
    weight = torch.tensor([[0.0, 0.5, -1.0, 1.5, -2.0, 3.0, 4.0, -6.0] * 4]).bfloat16()
    assert torch.equal(decode(round_weight(weight, "e2m1", 32)), weight)
    weight = torch.arange(-7, 9).clamp_max(7).repeat(2)[None].bfloat16()
    rounded = round_weight(weight, "int4", 32, zeros=True)
    assert rounded.zeros is not None and rounded.zeros.tolist() == [[implied_zero("int4")]]
    assert torch.equal(decode(rounded), weight)
