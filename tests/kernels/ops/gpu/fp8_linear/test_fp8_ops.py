"""Ops of layers choose by the weight: e4m3 with activations in e4m3, or what they took before."""

from __future__ import annotations

import torch

from slipstream_kernels.ops.gpu.fp8_linear.fp8_ops import CodeRoom, Fp8Linear, by_weight
from slipstream_kernels.ops.gpu.fp8_linear.fp8_products import fp8_products_reference
from slipstream_kernels.ops.gpu.fp8_linear.fp8_weight import Fp8Weight
from slipstream_kernels.ops.gpu.fp8_linear.quantise_rows import quantise_rows_reference
from slipstream_kernels.ops.gpu.linear import gated_linear_reference, linear_reference
from slipstream_kernels.ops.kv_cache.kv_codes import decode, encode


def test_activations_are_quantised_in_the_room_and_multiplied() -> None:
    room = CodeRoom.empty(5, 64, "cpu")
    assert room.nbytes == 5 * 64 + 5 * 4
    generator = torch.Generator().manual_seed(0)
    x, other = (torch.randn(rows, 32, generator=generator).bfloat16() for rows in (5, 3))
    codes = torch.randn(48, 32, generator=generator).to(torch.float8_e4m3fn)
    weight, plain = Fp8Weight(codes.view(torch.uint8), torch.full((48,), 0.25)), codes.float().bfloat16() / 4
    bias = torch.randn(48, generator=generator).bfloat16()
    for gated, dense, columns in ((False, linear_reference, 48), (True, gated_linear_reference, 24)):
        op = Fp8Linear(room, quantise_rows_reference, fp8_products_reference, dense, gated)
        more = {} if gated else {"bias": bias}
        for rows in (x, other):
            got, expected, exact = (torch.full((len(rows), columns), torch.nan) for _ in range(3))
            op(rows, weight, got, **more)
            dense(decode(*encode(rows)), plain, expected, **more)
            dense(rows, plain, exact, **more)
            torch.testing.assert_close(got, expected)
            assert not torch.allclose(got, exact, rtol=1e-3, atol=1e-3)
            op(rows, plain, got, **more)
            assert torch.equal(got, exact)


def test_an_op_goes_by_its_weight() -> None:
    called = []
    op = by_weight(lambda *operands, **more: called.append(("fp8", operands[2:], more)),
                   lambda *operands, **more: called.append(("other", operands[2:], more)))  # fmt: skip
    weight = Fp8Weight(torch.zeros(16, 16, dtype=torch.uint8), torch.ones(16))
    for each in (weight, weight.codes):
        op(torch.zeros(1, 16), each, 3, eps=1.0)
    assert called == [("fp8", (3,), {"eps": 1.0}), ("other", (3,), {"eps": 1.0})]
