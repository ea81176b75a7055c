"""Products of e4m3: their twin's sums, whatever the tile, and rows that know nothing of one another."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from slipstream_kernels.ops.gpu.fp8_linear.fp8_products import fp8_products, fp8_products_reference
from slipstream_kernels.ops.gpu.fp8_linear.fp8_tile import Fp8Tile
from slipstream_kernels.ops.gpu.fp8_linear.fp8_weight import Fp8Weight
from slipstream_kernels.ops.gpu.fp8_linear.quantise_rows import quantise_rows_reference

TILES = (
    Fp8Tile(16, 64, 4, tokens_first=False, chunks=2, prefetch=1024),
    Fp8Tile(64, 128, 4, tokens_first=False),
    Fp8Tile(64, 16, 4, tokens_first=True),
    None,
)


class Case:
    """Rows of all sizes, and a weight whose rows have scales of all sizes."""

    def __init__(self, rows: int, outputs: int, inputs: int, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(rows + outputs + inputs)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator)

        x = (normal(rows, inputs) * torch.exp2(4 * normal(rows, 1))).bfloat16()
        self.codes, self.scales = torch.empty(x.shape, dtype=torch.uint8), torch.empty(rows)
        quantise_rows_reference(x, self.codes, self.scales)
        codes = (64 * normal(outputs, inputs)).to(torch.float8_e4m3fn).view(torch.uint8)
        self.weight = Fp8Weight(codes.to(device), torch.exp2(normal(outputs) - 8).to(device))
        self.codes, self.scales = self.codes.to(device), self.scales.to(device)
        self.bias, self.residual = (normal(*shape).bfloat16().to(device) for shape in ((outputs,), (rows, outputs)))

    def run(self, op, dtype: torch.dtype, columns: int, **more) -> torch.Tensor:
        out = torch.full((len(self.codes), columns), torch.nan, dtype=dtype, device=self.codes.device)
        op(self.codes, self.scales, self.weight, out, **more)
        return out


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize(("rows", "inputs"), [(1, 128), (19, 400), (130, 64)])
def test_sums_are_the_twins(device: torch.device, rows: int, inputs: int, tile: Fp8Tile | None) -> None:
    case = Case(rows, 144, inputs, device)
    for more in ({}, {"bias": case.bias}, {"residual": case.residual}, {"bias": case.bias, "residual": case.residual}):
        got = case.run(fp8_products, torch.float32, 144, tile=tile, **more)
        expected = case.run(fp8_products_reference, torch.float32, 144, **more)
        size = expected.abs().amax(1, keepdim=True)
        assert ((got - expected).abs() <= 2e-3 * size).all()
        assert case.run(fp8_products, torch.bfloat16, 144, tile=tile, **more).equal(got.bfloat16())


@pytest.mark.parametrize("tile", TILES)
def test_gates_are_the_twins(device: torch.device, tile: Fp8Tile | None) -> None:
    case = Case(21, 96, 256, device)
    got, expected = (case.run(op, torch.float32, 48, gated=True, **more) for op, more in (
        (fp8_products, {"tile": tile}), (fp8_products_reference, {}),
    ))  # fmt: skip
    torch.testing.assert_close(got, expected, rtol=5e-3, atol=5e-3 * float(expected.abs().max()))


def test_the_residual_may_be_what_is_written(device: torch.device) -> None:
    case = Case(3, 144, 128, device)
    expected = case.run(fp8_products, torch.bfloat16, 144, residual=case.residual)
    fp8_products(case.codes, case.scales, case.weight, case.residual, residual=case.residual)
    assert torch.equal(case.residual, expected)


@pytest.mark.parametrize("rows", [1, 3, 17, 65])
def test_a_row_is_the_same_alone_and_among_others(device: torch.device, rows: int) -> None:
    """Also where rows that are no numbers lie behind the last one, in the same memory."""
    case = Case(130, 80, 256, device)
    whole = case.run(fp8_products, torch.float32, 80)
    index = torch.randperm(130, generator=torch.Generator().manual_seed(rows))[:rows]
    room = torch.full((130, 256), 0x7F, dtype=torch.uint8, device=device)
    room[:rows] = case.codes[index]
    out = torch.empty(rows, 80, device=device)
    fp8_products(room[:rows], case.scales[index].contiguous(), case.weight, out)
    if device.type == "cuda":
        assert torch.equal(out, whole[index])
    else:  # numpy's products are other for other shapes
        torch.testing.assert_close(out, whole[index], rtol=1e-5, atol=1e-5 * float(whole.abs().max()))


COMPILED = """
import re
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from slipstream_kernels.ops.gpu.fp8_linear.fp8_products import _fp8_products as kernel
from slipstream_kernels.ops.gpu.fp8_linear.fp8_tile import fp8_tile

for rows, outputs, products in ((1, 4096, 1), (40, 28672, 2), (100, 4096, 1), (512, 6144, 1), (4096, 4096, 1)):
    tile = fp8_tile(rows, outputs)
    constants = dict(
        TOKENS=tile.tokens, OUTPUTS=tile.outputs, CHUNKS=tile.chunks, TOKENS_FIRST=tile.tokens_first, PRODUCTS=products,
        BIAS=False, RESIDUAL=False, PREFETCH=tile.prefetch > 0, bias=None, residual=None,
    )
    types = {"x": f"tensordesc<fp8e4nv[{tile.tokens}, 128]>", "weight": f"tensordesc<fp8e4nv[{tile.outputs}, 128]>"}
    types |= {"weight_at": "*u8", "x_scales": "*fp32", "weight_scales": "*fp32", "out": "*bf16"}
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in constants.items()})
    options = {"enable_fp_fusion": False, "num_warps": tile.warps, "num_stages": tile.stages}
    made = compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    found = re.findall(r"(?:wgmma|mma)\\\\S*?m\\\\d+n\\\\d+(k\\\\d+)\\\\.(\\\\S+)", made.asm["ptx"])
    fits = made.metadata.shared <= 227 * 1024
    print(*sorted({" ".join(each) for each in found}), len(found) // tile.chunks % 4, fits)
"""


def test_every_tile_has_fp8_instructions_and_room() -> None:
    """Four for each chunk, or twice as many where a program's first operand has 128 rows of a warp group."""
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-c", COMPILED.replace("\\\\", "\\")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.splitlines() == ["k32 f32.e4m3.e4m3 0 True"] * 5, done.stderr[-2000:]
