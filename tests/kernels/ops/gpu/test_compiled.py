"""Attention's kernels compile for a GPU, on a machine that has none: what the interpreter takes, a compiler may not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from slipstream_kernels.ops.gpu.{module} import {kernel} as kernel

constants = dict(
    KV_HEADS=2, GROUP=4, HEAD_DIM=64, COLUMNS=64, PAGE_SIZE=16, SCALE=0.1, CAP=0.0, WINDOW=0, SINKS=False, STAGES=3,
    SEGMENTS=2, PATH=64, HEADS=4, HALF=32, NORMALISED=False, FIXED=False,
)
states = "m_out", "l_out", "o_out", "m_in", "l_in", "o_in"
floats = dict.fromkeys((*states, "table", "key_scales", "value_scales"), "*fp32")
halves = dict.fromkeys(("q", "out", "sinks", "qkv", "q_norm", "k_norm", "q_out"), "*bf16")
numbers = dict.fromkeys(("eps", "key_scale", "key_reciprocal", "value_scale", "value_reciprocal"), "fp32")
counts = dict.fromkeys(("pages_stride", "head_stride", "num_segments", "splits_stride"), "i32")
for rows in ("*bf16", "*u8"):
    types = floats | halves | numbers | counts | {{"keys": rows, "values": rows}}
    fixed = constants | ({{"key_scales": None, "value_scales": None}} if rows == "*bf16" else {{}})
    names = kernel.arg_names
    signature = {{name: "constexpr" if name in fixed else types.get(name, "*i32") for name in names}}
    chosen = {{(names.index(name),): value for name, value in fixed.items() if name in names}}
    target = GPUTarget("cuda", 90, 32)
    made = compile(ASTSource(kernel, signature, chosen), target=target, options={{"enable_fp_fusion": False}})
    print(rows, "e4m3" in made.asm["ptx"])
"""


@pytest.mark.parametrize(
    ("kernel", "decodes"), [("prefix_attention", True), ("tail_attention", True), ("rotary._rotary_write", False)]
)
def test_kernels_compile_for_rows_of_both_kinds(kernel: str, decodes: bool) -> None:
    module, _, name = kernel.partition(".")
    code = CODE.format(module=module, kernel=name or f"_{module}")
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["*bf16", "False", "*u8", str(decodes)], done.stderr[-2000:]
