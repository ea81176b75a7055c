"""Ops of layers choose by the weight: e4m3 with activations in e4m3, or what they took before."""

from __future__ import annotations

import torch

from slipstream_kernels.ops.gpu.fp8_linear.fp8_ops import CodedRows, CodeRoom, Fp8Linear, InputNorm, by_weight, on_rows
from slipstream_kernels.ops.gpu.fp8_linear.fp8_products import fp8_products_reference
from slipstream_kernels.ops.gpu.fp8_linear.fp8_weight import Fp8Weight
from slipstream_kernels.ops.gpu.fp8_linear.quantise_rows import quantise_rows_reference
from slipstream_kernels.ops.gpu.linear import gated_linear_reference, linear_reference
from slipstream_kernels.ops.gpu.rms_norm import rms_norm_reference
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


def test_a_norm_quantises_for_a_layer_of_e4m3_alone() -> None:
    room = CodeRoom.empty(5, 64, "cpu")
    generator = torch.Generator().manual_seed(1)
    x, gain = (torch.randn(*shape, generator=generator).bfloat16() for shape in ((3, 32), (32,)))
    codes = torch.randn(48, 32, generator=generator).to(torch.float8_e4m3fn).view(torch.uint8)
    weight, plain = Fp8Weight(codes, torch.full((48,), 0.25)), torch.zeros(48, 32).bfloat16()
    layer = Fp8Linear(room, quantise_rows_reference, fp8_products_reference, linear_reference)
    normed, expected = torch.empty_like(x), torch.empty(3, 48)
    rms_norm_reference(x, gain, normed, 1e-5)
    layer(normed, weight, expected)
    for each, of_room in ((weight, None), (plain, room)):
        out = torch.empty_like(x)
        assert InputNorm(rms_norm_reference, of_room)(x, gain, out, 1e-5, each, kept=False) is out
        assert torch.equal(out, normed)
    for kept in (True, False):
        out, got = torch.zeros_like(x), torch.empty(3, 48)
        coded = InputNorm(rms_norm_reference, room)(x, gain, out, 1e-5, weight, kept=kept)
        assert isinstance(coded, CodedRows)
        assert len(coded) == 3
        assert torch.equal(out, normed if kept else torch.zeros_like(x))
        layer(coded, weight, got)
        assert torch.equal(got, expected)


def test_an_op_may_want_rows_as_they_are() -> None:
    seen = []
    op = on_rows(lambda x, *operands: seen.append((x, operands)))
    rows, codes = torch.zeros(2, 16), torch.zeros(2, 16, dtype=torch.uint8)
    op(rows, 1)
    op(CodedRows(codes, torch.ones(2), rows), 2)
    assert [operands for _, operands in seen] == [(1,), (2,)]
    assert all(x is rows for x, _ in seen)
