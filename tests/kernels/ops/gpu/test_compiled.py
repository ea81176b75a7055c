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
    KV_HEADS=2, GROUP=4, HEAD_DIM=64, COLUMNS=64, PAGE_SIZE=16, SCALE=0.1, CAP=0.0, REACH={reach}, SINKS=False,
    STAGES=3, SEGMENTS=2, PATH=64, HEADS=4, HALF=32, NORMALISED=False, FIXED=False,
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
    ("kernel", "reach", "decodes"),
    [
        ("prefix_attention", 0, True),
        ("tail_attention", -8192, True),
        ("rotary._rotary_write", 0, False),
    ],
)
def test_kernels_compile_for_rows_of_both_kinds(kernel: str, reach: int, decodes: bool) -> None:
    """With all positions in reach, and those of a chunk."""
    module, _, name = kernel.partition(".")
    code = CODE.format(module=module, kernel=name or f"_{module}", reach=reach)
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["*bf16", "False", "*u8", str(decodes)], done.stderr[-2000:]


MIXTURE = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from slipstream_kernels.ops.gpu.experts.combine_experts import _combine
from slipstream_kernels.ops.gpu.experts.count_awake import _count
from slipstream_kernels.ops.gpu.experts.expert_linear import _expert_linear
from slipstream_kernels.ops.gpu.experts.route_experts import _route
from slipstream_kernels.ops.gpu.scale_queries import _scale_queries

halves = dict.fromkeys(("x", "weight", "bias", "q", "norm", "normed"), "*bf16")
floats = dict.fromkeys(("scores", "weights", "outputs", "shared", "residual", "factors", "scales", "zeros"), "*fp32")
words = dict.fromkeys(("ids", "awake", "slots", "order", "blocks", "positions"), "*i32")
types = halves | floats | words | {"out": "*bf16", "eps": "fp32"}
constants = dict(
    CHOSEN=1, NORMALISED=False, SIGMOID=True, SLOTS=True, BLOCK=16, WEIGHED=False, SHARED=True, RESIDUAL=True,
    NORMED=True, WEIGHT_ROWS=64, TOKENS=16, DEPTH=64, PRODUCTS=2, EVEN=True, GROUPED=True, BIAS=False, FACTORS=True,
    LIMIT=0.0, WORDS=3, TOGETHER=8, PART=32, CHUNK=128, NUMBER="", PER_BYTE=1, COLUMNS=0, GROUP=0, ZERO=0.0,
    ZEROS=False, PAIRED=True,
)
for kernel in (_combine, _count, _route, _scale_queries, _expert_linear):
    for number in ("", "e4m3", "e2m1") if kernel is _expert_linear else ("",):
        own = constants | {"NUMBER": number} | ({"COLUMNS": 128, "GROUP": 128} if number == "e2m1" else {})
        names = kernel.arg_names
        of = types | ({"outputs": "i32"} if kernel is _expert_linear else {}) | ({"weight": "*u8"} if number else {})
        of |= {"weight": "*i32", "scales": "*i32"} if number == "e2m1" else {}
        signature = {name: "constexpr" if name in own else of.get(name, "i32") for name in names}
        chosen = {(names.index(name),): value for name, value in own.items() if name in names}
        target = GPUTarget("cuda", 90, 32)
        compile(ASTSource(kernel, signature, chosen), target=target, options={"enable_fp_fusion": False})
        print(kernel.__name__, number)
"""


def test_a_mixture_of_weighed_inputs_compiles() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-c", MIXTURE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    expected = ["_combine", "_count", "_route", "_scale_queries", "_expert_linear", "_expert_linear", "e4m3"]
    expected += ["_expert_linear", "e2m1"]
    assert done.stdout.split() == expected, done.stderr[-2000:]


STREAMED = """
import subprocess
from triton import compile, knobs
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource
from slipstream_kernels.ops.gpu.experts.hopper_experts import _hopper_experts, constants_of
from slipstream_kernels.ops.gpu.packed.packed_weight import PackedForm

types = {"x": "*bf16", "out": "*bf16", "bias": "*bf16", "factors": "*fp32"}
types |= dict.fromkeys(("codes", "ids", "order", "blocks"), "*i32")
names = _hopper_experts.arg_names
for number, tokens in (
    ("e2m1", 16), ("e2m1", 32), ("e2m1", 64), ("e2m1", 128), ("e2m1 as it is", 16),
    ("int4", 16), ("int4 as it is", 16), ("e4m3", 16), ("e4m3", 32), ("e4m3", 128),
):
    number, _, others = number.partition(" ")
    paired, zeros = number != "e4m3" and not others, number == "int4"
    form = PackedForm(number, 5760, 2880, 128, zeros)
    limit = 7.0 if number == "e2m1" else 0.0
    constants, warps = constants_of(tokens, form, products=2, grouped=True, limit=limit)
    own = types | {"scales": "*i32" if paired or number == "e2m1" else "*fp32"} | ({"zeros": "*fp32"} if zeros else {})
    constants["PAIRED"] = paired
    constants |= {name: None for name, kept in (("zeros", zeros), ("bias", limit), ("factors", limit)) if not kept}
    signature = {name: "constexpr" if name in constants else own.get(name, "i32") for name in names}
    chosen = {(names.index(name),): value for name, value in constants.items()}
    wide = {*own, "outputs", "inputs", "x_stride", "out_stride"} - {"factors", *constants}
    known = {(names.index(name),): [["tt.divisibility", 16]] for name in wide}
    source = GluonASTSource(_hopper_experts, signature, chosen, known)
    options = {"num_warps": warps, "enable_fp_fusion": False}
    made = compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    text = made.asm["ptx"]
    command = [knobs.nvidia.ptxas.path, "-v", "-arch=sm_90a", "-", "-o", "/dev/null"]
    told = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stderr
    apart = "wgmma" in text and "serialized" not in told and " 0 bytes spill stores" in told
    print(number + others, tokens, made.metadata.shared <= 227 * 1024, apart, "st.shared" in text)
"""


@pytest.mark.slow
def test_experts_are_decoded_to_registers() -> None:
    """What is decoded goes to no other thread: nothing is written to shared memory but by copies. Nor has a product to
    wait for the one before, as it has where the compiler takes another's register for one of its sums.
    """
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-c", STREAMED]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    cases = *(f"e2m1 {tokens}" for tokens in (16, 32, 64, 128)), "e2m1as it is 16", "int4 16", "int4as it is 16"
    cases = *cases, *(f"e4m3 {tokens}" for tokens in (16, 32, 128))
    expected = [f"{case} True True False" for case in cases]
    assert done.stdout.splitlines() == expected, done.stderr[-2000:]


SAMPLING = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from slipstream_kernels.ops.gpu.compaction import _compact_kv
from slipstream_kernels.ops.gpu.filters import _filter_rows
from slipstream_kernels.ops.gpu.sampling import _choose, _score
from slipstream_kernels.ops.gpu.tree_walk import _tree_walk

floats = dict.fromkeys(("logits", "bias", "scores"), "*fp32")
counts = dict.fromkeys(("logits_stride", "vocab_size", "splits", "pages", "page_size", "head_stride"), "i32")
types = floats | counts | {"token_flags": "*u8", "histograms": "*i64", "keys": "*bf16", "values": "*bf16"}
constants = dict(
    BINS=2048, BLOCKS=4, SPLITS=32, VOCAB=128256, PARAMS_WIDTH=16, FLAGS_WORD=10, PENALTIES=1, WIDTH=64, HEAD_DIM=64,
    NODES=16, RESULT=130, key_scales=None, value_scales=None,
)
target = GPUTarget("cuda", 90, 32)
for kernel, masked in ((_filter_rows, 0), (_filter_rows, 1), (_score, 0), (_score, 1), (_choose, 0), (_choose, 1),
                       (_tree_walk, 0), (_compact_kv, 0)):
    own = constants | {"MASKED": bool(masked), "BLOCK": 4096 if kernel is _filter_rows else 1024}
    names = kernel.arg_names
    signature = {name: "constexpr" if name in own else types.get(name, "*i32") for name in names}
    chosen = {(names.index(name),): value for name, value in own.items() if name in names}
    compile(ASTSource(kernel, signature, chosen), target=target, options={"enable_fp_fusion": False})
    print(kernel.__name__, masked)
"""


@pytest.mark.slow
def test_sampling_compiles_with_masks_and_without() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-c", SAMPLING]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    expected = "_filter_rows 0 _filter_rows 1 _score 0 _score 1 _choose 0 _choose 1 _tree_walk 0 _compact_kv 0"
    assert done.stdout.split() == expected.split(), done.stderr[-2000:]


ADAPTERS = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from slipstream_kernels.ops.gpu.lora.adapter_rows import _gather, _settle
from slipstream_kernels.ops.gpu.lora.expand import _expand
from slipstream_kernels.ops.gpu.lora.expand_gate import _expand_gate
from slipstream_kernels.ops.gpu.lora.expand_rotary import _expand_rotary
from slipstream_kernels.ops.gpu.lora.shrinking_linear import _shrinking_blocks, _shrinking_stream

halves = dict.fromkeys(("x", "weight", "weight_at", "out", "residual", "a", "shrunk", "b", "qkv", "q_out"), "*bf16")
floats = dict.fromkeys(("scales", "table", "gate_up"), "*fp32")
rows = dict.fromkeys(("keys", "values"), "*bf16")
words = "row_slots", "active", "slots", "placed", "tiles", "positions", "write_slots", "lines", "adapters"
aligned = {"inputs", "outputs", "ranks", "x_stride", "out_stride", "residual_stride", "head_stride"}
linear = dict(bias=None, BIAS=False, RESIDUAL=True, EVEN=True, PREFETCH=True, DEPTH=128)
fetched = {"x": "tensordesc<bf16[64, 128]>", "weight": "tensordesc<bf16[64, 128]>"}
heads = dict(HEADS=4, KV_HEADS=2, HALF=64)
ranks = dict(SIZE=16, RANK=16, DEPTH=16)
for kernel, stages, own, constants in (
    (_shrinking_stream, 6, {}, linear | dict(WEIGHT_ROWS=64, TOKENS=64)),
    (_shrinking_blocks, 6, fetched, linear | dict(WEIGHT_ROWS=64, TOKENS=64, LINES=16, TOKENS_FIRST=True)),
    (_expand, 1, {}, ranks | dict(ROWS=128, GROUPED=True, GROUP=8)),
    (_expand_gate, 1, {}, ranks | dict(ROWS=128, GROUP=8)),
    (_expand_rotary, 1, {}, ranks | heads | dict(ROWS=64)),
    (_gather, 1, {}, dict(NONE=16, GROUPS=32, SIZE=16, OWN=16, OTHERS=128)),
    (_settle, 1, {}, {}),
):
    types = halves | floats | rows | dict.fromkeys(words, "*i32") | own
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    chosen = {(names.index(name),): value for name, value in constants.items()}
    wide = [name for name in names if name in types and name not in constants or name in aligned]
    known = {(names.index(name),): [["tt.divisibility", 16]] for name in wide}
    source = ASTSource(kernel, signature, chosen, known)
    made = compile(source, target=GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": False, "num_stages": stages})
    text = made.asm["ptx"]
    print(kernel.__name__, made.metadata.shared <= 227 * 1024, "wgmma.mma_async" in text, "cp.async.cg" in text)
"""


def test_adapters_compile() -> None:
    """Products are those of the instructions that all layers have, and weights are copied sixteen bytes at a time."""
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-c", ADAPTERS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    expected = ["_shrinking_stream True True True", "_shrinking_blocks True True True"]
    expected += [f"{name} True True False" for name in ("_expand", "_expand_gate", "_expand_rotary")]
    expected += ["_gather True False False", "_settle True False False"]
    assert done.stdout.splitlines() == expected, done.stderr[-2000:]
