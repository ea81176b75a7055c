from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from slipstream_kernels.ops.gpu.fp8_linear.quantise_rows import quantise_rows
from slipstream_kernels.ops.gpu.rms_norm import rms_norm, rms_norm_reference

SIZES = [16, 48, 384, 4096, 8208]


def inputs(rows: int, hidden: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(rows + hidden)
    x = torch.randn(rows, hidden, device=device) * torch.rand(rows, 1, device=device) * 5
    return x.bfloat16(), torch.randn(hidden, device=device).bfloat16()


def poisoned(rows: int, hidden: int, device: torch.device) -> torch.Tensor:
    return torch.full((rows, hidden), torch.nan, dtype=torch.bfloat16, device=device)


@pytest.mark.parametrize("hidden", SIZES)
@pytest.mark.parametrize("op", [rms_norm, rms_norm_reference])
def test_matches_float64(device: torch.device, hidden: int, op) -> None:
    x, weight = inputs(5, hidden, device)
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    out = poisoned(5, hidden, device)
    op(x, weight, out, 1e-5)
    # One rounding to bfloat16: 2^-8 of each value at most, beside float32's error.
    assert ((out.double() - expected).abs() <= expected.abs() * (2**-8 + 1e-5)).all()


@pytest.mark.parametrize("hidden", SIZES)
def test_rows_stand_alone(device: torch.device, hidden: int) -> None:
    x, weight = inputs(7, hidden, device)
    together, alone = poisoned(7, hidden, device), poisoned(7, hidden, device)
    rms_norm(x, weight, together, 1e-6)
    for row in range(7):
        rms_norm(x[row : row + 1], weight, alone[row : row + 1], 1e-6)
    assert torch.equal(together, alone)


@pytest.mark.parametrize("op", [rms_norm, rms_norm_reference])
def test_chosen_rows(device: torch.device, op) -> None:
    x, weight = inputs(6, 48, device)
    whole, chosen = poisoned(6, 48, device), poisoned(4, 48, device)
    op(x, weight, whole, 1e-5)
    op(x, weight, chosen, 1e-5, torch.tensor([5, 0, -1, 3], dtype=torch.int32, device=device))
    assert torch.equal(chosen[[0, 1, 3]], whole[[5, 0, 3]])
    assert chosen.isfinite().all()


def test_in_place(device: torch.device) -> None:
    x, weight = inputs(3, 8208, device)
    out = poisoned(3, 8208, device)
    rms_norm(x, weight, out, 1e-5)
    rms_norm(x, weight, x, 1e-5)
    assert torch.equal(x, out)


@pytest.mark.parametrize("hidden", SIZES)
@pytest.mark.parametrize("op", [rms_norm, rms_norm_reference])
def test_codes_are_those_of_the_rounded_rows(device: torch.device, hidden: int, op) -> None:
    """Also of zeros, and of what is no number; whether the rows are kept or not."""
    x, weight = inputs(6, hidden, device)
    x[2], x[3, 5], x[4] = 0, torch.nan, x[4] * 2.0**-130
    out, kept = poisoned(6, hidden, device), poisoned(6, hidden, device)
    op(x, weight, out, 1e-5)
    (expected, of_rows), *others = (
        (torch.full((6, hidden), 9, dtype=torch.uint8, device=device), torch.full((6,), -1.0, device=device))
        for _ in range(3)
    )
    quantise_rows(out, expected, of_rows)
    for room, (codes, scales) in zip((None, kept), others, strict=True):
        op(x, weight, room, 1e-5, codes=codes, scales=scales)
        assert torch.equal(codes, expected)
        assert torch.equal(scales, of_rows)
    assert torch.equal(kept.view(torch.int16), out.view(torch.int16))


COMPILED = r"""
import re
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from slipstream_kernels.ops.gpu.rms_norm import rms_norm_kernel as kernel, rms_norm_tile

types = {"x": "*bf16", "weight": "*bf16", "out": "*bf16", "codes": "*u8", "scales": "*fp32", "eps": "fp32"}
names = kernel.arg_names
for hidden in (2880, 16384):
    tile, warps = rms_norm_tile(hidden)
    for kept, coded in ((True, False), (True, True), (False, True)):
        fixed = dict(HIDDEN=hidden, TILE=tile, CHOSEN=False, KEPT=kept, CODED=coded, rows=None)
        fixed |= {name: None for name, there in (("out", kept), ("codes", coded), ("scales", coded)) if not there}
        signature = {name: "constexpr" if name in fixed else types[name] for name in names}
        chosen = {(names.index(name),): value for name, value in fixed.items()}
        known = {(names.index(name),): [["tt.divisibility", 16]] for name in types if name not in (*fixed, "eps")}
        options = {"enable_fp_fusion": False, "num_warps": warps, "num_stages": 1}
        made = compile(ASTSource(kernel, signature, chosen, known), target=GPUTarget("cuda", 90, 32), options=options)
        text = made.asm["ttgir"]
        (summed,) = re.findall(r"allow_reorder : tensor<\d+xf32, (#\w+)>", text)
        print(hidden, *re.findall(f"^{summed} = .*sizePerThread = (\S+),", text, re.MULTILINE))
"""


def test_sums_have_one_order_whatever_is_written() -> None:
    """A thread sums what it loads together, 8 elements at a time, also where it writes codes, of half their size."""
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-c", COMPILED]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.splitlines() == ["2880 [8]"] * 3 + ["16384 [8]"] * 3, done.stderr[-2000:]
