from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.kernels.check_fp8_products.__main__ import Found, Judged, check_way, judge, main, verdict
from benchmarks.kernels.check_fp8_products.operands import KINDS, Scene, exact, random_rows
from benchmarks.kernels.check_fp8_products.product_times import BFLOAT16, TimedLayer, passes, time_layer
from benchmarks.kernels.check_fp8_products.products import (
    SCHEMES,
    Fp8Operands,
    Scheme,
    SchemeTile,
    fp8_products,
    quantise,
)
from benchmarks.kernels.linear_candidates import Layer
from slipstream_kernels.ops.gpu.gate_up import separate_gate_up
from slipstream_kernels.ops.kv_cache.kv_codes import encode

CPU = torch.device("cpu")
TILES = SchemeTile(16, 64, 4, tokens_first=False), SchemeTile(16, 32, 4, tokens_first=True)


def whole_numbers(rows: int, outputs: int, inputs: int, *, blocks: bool) -> Fp8Operands:
    """Operands whose products are exact in any order of sums."""
    random = torch.Generator().manual_seed(rows)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randint(-4, 5, shape, generator=random).float()

    chunks = inputs // 128
    scales = (chunks, rows), (-(-outputs // 128), chunks)
    by_token, by_output = (numbers(*shape) for shape in (scales if blocks else ((1, rows), (outputs, 1))))
    return Fp8Operands(
        numbers(rows, inputs).to(torch.float8_e4m3fn), numbers(outputs, inputs).to(torch.float8_e4m3fn),
        by_token, by_output,
    )  # fmt: skip


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_products_have_their_scales(scheme: Scheme) -> None:
    given = whole_numbers(17, 144, 256, blocks=scheme.blocks)
    residual = torch.randint(-9, 9, (17, 144)).bfloat16()
    expected, _ = exact(given)
    for tile in TILES:
        out, more = torch.full((17, 144), torch.nan), torch.full((17, 144), torch.nan)
        fp8_products(given, out, scheme, tile)
        fp8_products(given, more, scheme, tile, residual=residual)
        assert torch.equal(out.double(), expected)
        assert torch.equal(more.double(), expected + residual.double())


def test_gated_products_are_gated_after_their_scales() -> None:
    given = whole_numbers(3, 64, 128, blocks=False)
    given = replace(given, x_scales=given.x_scales / 64)
    gate, up = separate_gate_up(exact(given)[0], dim=1).chunk(2, dim=1)
    for tile in TILES:
        out = torch.full((3, 32), torch.nan)
        fp8_products(given, out, SCHEMES[0], tile, gated=True)
        torch.testing.assert_close(out.double(), torch.nn.functional.silu(gate) * up, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("groups", [1, 3])
def test_activations_are_quantised_as_keys_and_values_are(groups: int) -> None:
    x = (torch.randn(5, 384) * torch.exp2(torch.arange(-60.0, 60.0, 24))[:, None]).bfloat16()
    codes, scales = torch.empty(5, 384, dtype=torch.uint8), torch.empty(groups, 5)
    quantise(x, codes, scales)
    expected, of_groups = encode(x.view(5, groups, -1))
    assert torch.equal(codes, expected.flatten(1))
    assert torch.equal(scales, of_groups.T)


def test_operands_are_of_every_kind() -> None:
    rows = random_rows(8 * len(KINDS), 512, torch.Generator().manual_seed(0)).float()
    kinds = {kind: rows[number :: len(KINDS)] for number, kind in enumerate(KINDS)}
    assert rows.isfinite().all()
    assert kinds["normal"].abs().amax(1).eq(448).all()
    assert 0 < kinds["subnormal"].abs().max() < 2.0**-6
    assert kinds["largest"].abs().eq(448).all()
    assert kinds["one large"].gt(1).sum(1).eq(1).all()
    constant, paired = kinds["cancelling"][1::2], kinds["cancelling"][::2]
    size = paired.abs() @ constant.abs().T
    assert ((paired @ constant.T).abs() < size / 1000).all()
    assert len(kinds["any code"].unique()) > 200


def test_a_row_that_depends_on_the_others_is_found() -> None:
    scene = Scene.random((1, 2, 16), 8, 128, CPU, blocks=False)

    def alone(given: Fp8Operands) -> torch.Tensor:
        return (given.x.float() @ given.weight.float().T).mul(0) + given.x.float().sum(1, keepdim=True)

    def beside(given: Fp8Operands) -> torch.Tensor:
        made = alone(given)
        made[len(given.x) // 2] += given.x.float().abs().max(1).values.sum()
        return made

    def failing(given: Fp8Operands) -> torch.Tensor:
        if len(given.x) == 2:
            raise RuntimeError("two rows")
        return alone(given)

    kept, changed, failed = (Found("scheme", "way", 128) for _ in range(3))
    assert check_way(alone, scene, kept) is not None
    assert check_way(beside, scene, changed) is not None
    assert check_way(failing, scene, failed) is not None
    assert (kept.differing, kept.failed, failed.differing) == ({}, {}, {})
    assert changed.differing["first 1"] == {"normal": 1}
    assert "first 16" not in changed.differing
    assert set(failed.failed) == {"first 2", "any 2"}


def test_ways_are_judged_by_scheme_and_instructions() -> None:
    fp8, float16 = ["wgmma.mma_async k32 f32.e4m3.e4m3"], ["mma k16 f32.f16.f16.f32"]
    found = [
        Found("rows, acc 32", way, inputs, names, group)
        for inputs in (256, 512)
        for way, names, group in (("a", fp8, "A"), ("b", fp8, "A"), ("c", float16, "B"))
    ]
    assert judge(found) == [
        Judged("rows, acc 32", fp8[0], 2, 2, 1, 0),
        Judged("rows, acc 32", float16[0], 1, 1, 1, 0),
    ]
    assert [each.exact for each in judge(found)] == [True, True]
    assert list(verdict(judge(found)))[-1].endswith("by: rows, acc 32")
    found[3].group = "C"
    (first, second) = judge(found)
    assert (first.groups, first.exact, second.exact) == (2, False, True)
    assert "cannot be in the exact mode" in list(verdict(judge(found)))[-1]
    found[3].group, found[3].differing = "A", {"any 2": {"normal": 1}}
    assert (judge(found)[0].keep_rows, judge(found)[0].exact) == (1, False)
    found[3].differing, found[3].failed = {}, {"any 2": "out of memory"}
    assert (judge(found)[0].failed, judge(found)[0].exact) == (1, False)


def test_a_small_experiment_is_written(tmp_path: Path) -> None:
    output = tmp_path / "found.json"
    assert main(["--small", "--output", str(output)]) == 0
    found = json.loads(output.read_text())
    assert {each["scheme"] for each in found["bits"]} >= {scheme.name for scheme in SCHEMES}
    assert not any(each["failed"] for each in found["bits"] if "acc" in each["scheme"])
    assert all(each["normal"] < 1e-2 for each in found["errors"])
    assert len(found["verdict"]) == len(found["judged"]) + 1


def test_every_way_is_timed() -> None:
    def once(calls: list) -> float:
        calls[0]()
        return float(len(calls))

    layers = Layer("o", 64, 128, 3, residual=True), Layer("gate_up", 64, 128, 2, gated=True)
    times = [time_layer(TimedLayer.random(layer, 2, CPU, copies=2), 2, once) for layer in layers]
    for entry in times:
        assert not [name for name in entry["failed"] if not name.startswith("_scaled_mm")]
        assert set(entry["tiles"]) == {scheme.name for scheme in SCHEMES if scheme.imprecise != 0}
    (sums,) = passes(times)
    assert sums[BFLOAT16] == 0.010  # 2 us x 5
    assert sums["rows, acc 32"] == sums["blocks, acc 32"] == 0.030  # (2 + 4) us x 5


COMPILED = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from benchmarks.kernels.check_fp8_products.products import _fp8_products as kernel
from benchmarks.kernels.check_fp8_products.products import instructions

for imprecise, first, blocks in ((0, False, False), (32, False, False), (None, False, True), (32, True, False)):
    constants = dict(
        TOKENS=16, OUTPUTS=64, DEPTH=128, BLOCKS=blocks, IMPRECISE=imprecise, TOKENS_FIRST=first, PRODUCTS=1,
        RESIDUAL=False, residual=None,
    )
    types = {"x": "tensordesc<fp8e4nv[16, 128]>", "weight": "tensordesc<fp8e4nv[64, 128]>"}
    types |= dict.fromkeys(("x_scales", "weight_scales", "out"), "*fp32")
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    chosen = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature, chosen)
    made = compile(source, target=GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": False, "num_stages": 3})
    print(*instructions(made.asm["ptx"]), sep=", ")
"""


def test_fp8_instructions_are_compiled_unless_sums_are_precise_or_rows_few() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-c", COMPILED]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    fp8, float16 = "wgmma.mma_async k32 f32.e4m3.e4m3", "mma k16 f32.f16.f16.f32"
    assert done.stdout.splitlines() == [float16, fp8, fp8, float16], done.stderr[-2000:]
