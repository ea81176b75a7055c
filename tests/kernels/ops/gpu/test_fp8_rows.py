"""Keys and values of 8 bits in the kernels: written as `kv_codes` says, and read as the numbers that they stand for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from benchmarks.kernels.attention_scenes import Scene, Vectors, relative_error
from benchmarks.kernels.check_attention import LIMIT
from slipstream_kernels.ops.attention_form import FULL, AttentionForm
from slipstream_kernels.ops.gpu.attention_state import columns_of
from slipstream_kernels.ops.gpu.code_blocks import decoded, load_codes
from slipstream_kernels.ops.gpu.compaction import compact_kv, compact_kv_reference
from slipstream_kernels.ops.gpu.fp8_rows import halved
from slipstream_kernels.ops.gpu.paged_rows import load_rows
from slipstream_kernels.ops.gpu.prefix_attention import PrefixPrograms, prefix_attention
from slipstream_kernels.ops.gpu.rotary import rotary_write, rotary_write_reference
from slipstream_kernels.ops.gpu.rotary_linear import rotary_linear, rotary_linear_reference
from slipstream_kernels.ops.gpu.tree_walk import RESULT_WIDTH
from slipstream_kernels.ops.kv_cache.kv_codes import Fp8Rows, decode, encode
from slipstream_kernels.ops.rope import Rope

TOKENS = 256
FIXED = [(0.0, 0.0), (0.0371, 2.5)]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.int16), b.contiguous().view(torch.int16))


@pytest.mark.parametrize("fixed", FIXED, ids=["own", "fixed"])
@pytest.mark.parametrize("form", [FULL, AttentionForm(window=70, cap=2.0, sinks=True)], ids=["full", "window"])
def test_attention_reads_the_numbers_that_codes_stand_for(device, form, fixed):
    """Twins bit for bit; kernels, which sum weights in another order, nearly so, with tiles of all widths."""
    rng = np.random.default_rng(0)
    vectors = Vectors.random(TOKENS, 2, 2, 64, 1, device, form)
    scene = Scene(vectors, 16)
    scene.tree(rng.integers(0, TOKENS, 62), [-1, 0, 1, 0], rng.integers(0, TOKENS, 4))
    scene.decode(rng.integers(0, TOKENS, 130))
    scene.prefill(rng.integers(0, TOKENS, 70), 60)
    coded, plain = scene.build(padding=1).in_codes(fixed)
    rows = len(scene.sequences)
    got, expected = (each.attend(columns=64, twins=True, padding=1)[:rows] for each in (coded, plain))
    assert same_bits(got, expected)
    for columns in (16, 64):
        got = coded.attend(columns=columns, prefill_columns=columns, padding=1)[:rows]
        assert relative_error(got, expected.double()) < LIMIT
    decoding = coded.decode_rows[coded.decode_rows >= 0].long()
    assert relative_error(coded.attend_in_tiles(columns=64)[decoding], expected[decoding].double()) < LIMIT


@pytest.mark.parametrize(("group", "columns"), [(3, 32), (8, 16)])
def test_tiles_as_narrow_as_their_rows(device, group, columns):
    """Prefixes of several splits and segments of several rows, blocks that some rows of a tile do not see."""
    rng = np.random.default_rng(group)
    scene = Scene(Vectors.random(TOKENS, 1, group, 128, 1, device), 1)
    scene.tree(rng.integers(0, TOKENS, 1300), [-1] * 5, rng.integers(0, TOKENS, 5))
    scene.prefill(rng.integers(0, TOKENS, 135), 120)
    coded, _ = scene.build().in_codes()
    states = {}
    for width in (columns, 64):
        partials = coded.partials()
        kv = coded.q, coded.keys, coded.values, coded.page_table, coded.page_size
        prefix_attention(*kv, *coded.segments(width), partials, columns=width, programs=PrefixPrograms(3, 1, None))
        states[width] = partials
    written = states[64].l.isfinite()
    assert torch.equal(states[columns].m[written], states[64].m[written])
    for name in ("l", "o"):
        own, other = (getattr(states[width], name)[written] for width in (columns, 64))
        assert relative_error(own, other.double()) < 1e-5
    got, expected = (coded.attend(columns=columns, prefill_columns=columns, twins=twins) for twins in (False, True))
    assert relative_error(got, expected.double()) < LIMIT


def test_a_tile_is_no_wider_than_its_rows():
    plain = torch.empty(2, 8, 64)
    codes = store(torch.device("cpu"), 2, 8, 64, 0.0)
    assert [columns_of(1, group, codes, 64) for group in (1, 4, 16, 17, 64)] == [16, 16, 16, 32, 64]
    assert columns_of(3, 8, codes, 64) == 32
    assert columns_of(9, 8, codes, 64) == columns_of(1, 4, plain, 64) == 64
    assert columns_of(1, 4, store(torch.device("cpu"), 2, 8, 256, 0.0), 64) == 64


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_numbers_are_those_of_the_twin_however_they_come(device, dtype):
    codes = torch.arange(256, dtype=torch.uint8, device=device).view(4, 64)
    expected = decode(codes, torch.ones(4, device=device)).to(dtype)
    for ahead in (False, True):
        out = torch.empty(4, 64, dtype=dtype, device=device)
        _decode_all[(1,)](codes, torch.ones(4, device=device), out, ahead=ahead)
        assert torch.equal(out.isnan(), expected.isnan())
        assert same_bits(out.nan_to_num(), expected.nan_to_num())


@triton.jit
def _decode_all(codes, scales, out, ahead: tl.constexpr):
    slots = tl.arange(0, 4)
    if ahead:
        words, _ = load_codes(codes, scales, slots, 64)
        numbers = decoded(words, out.dtype.element_ty)
    else:
        numbers = load_rows(codes, slots, 64, NUMBER=out.dtype.element_ty)
    tl.store(out + slots[:, None] * 64 + tl.arange(0, 64)[None, :], numbers)


def test_a_query_is_its_halves_times_its_unit(device):
    """Rows of all sizes, of zeros, and with what is infinite; elements far below a row's largest may lose last bits."""
    exponents = torch.tensor([-80, -60, -1, 0, 40, 126.0, 0, 0], device=device)
    query = torch.rand(8, 64, device=device).add(1) * torch.exp2(exponents)[:, None]
    query[:, ::2] *= -torch.exp2(-torch.arange(0, 32, device=device))
    query[6], query[7, 3] = 0, torch.inf
    query = query.bfloat16()
    half, units = torch.empty(8, 64, dtype=torch.float16, device=device), torch.empty(8, device=device)
    _halve[(1,)](query, half, units)
    restored = half.double() * units.double()[:, None]
    assert torch.equal(torch.log2(units), torch.log2(units).round())
    assert half[:6].float().abs().amax(1).ge(2.0**14).all()
    assert torch.equal(restored[6], torch.zeros_like(restored[6]))
    assert torch.equal(half[7].isinf(), query[7].isinf())
    largest = query[:6].double().abs().amax(1, keepdim=True)
    kept = query[:6].double().abs() >= largest * 2.0**-31
    assert torch.equal(restored[:6][kept], query[:6].double()[kept])
    assert (restored[:6] - query[:6].double()).abs().le(largest * 2.0**-38).all()


@triton.jit
def _halve(query, half, units):
    rows, elements = tl.arange(0, 8), tl.arange(0, 64)
    places = rows[:, None] * 64 + elements[None, :]
    numbers, unit = halved(tl.load(query + places))
    tl.store(half + places, numbers)
    tl.store(units + rows, unit)


def store(device, kv_heads: int, slots: int, head_dim: int, fixed: float) -> Fp8Rows:
    codes = torch.full((kv_heads, slots, head_dim), 9, dtype=torch.uint8, device=device)
    return Fp8Rows(codes, torch.full((kv_heads, slots), -1.0, device=device), fixed)


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("fixed", FIXED, ids=["own", "fixed"])
def test_rows_are_written_as_by_the_twin(device, fixed, normalised):
    """Rows of all sizes, of zeros, and with what is no number."""
    torch.manual_seed(0)
    rows, heads, kv_heads, head_dim, slots = 7, 3, 2, 64, 12
    qkv = torch.randn(rows, (heads + 2 * kv_heads) * head_dim, device=device)
    qkv *= torch.exp2(torch.tensor([0, -30, 40, 5, -110, 0, 3.0], device=device))[:, None]
    qkv[5] = 0
    if not normalised:
        qkv[3, -1] = torch.nan
        qkv[6, -2] = torch.inf
    table = torch.from_numpy(Rope(10_000.0).table(50, head_dim)).to(device)
    positions = torch.arange(rows, dtype=torch.int32, device=device) * 7
    write_slots = torch.tensor([4, 0, 11, 2, -1, 7, 5], dtype=torch.int32, device=device)
    norms = [torch.randn(head_dim, device=device).bfloat16() for _ in range(2)]
    more = {"q_norm": norms[0], "k_norm": norms[1], "eps": 1e-6} if normalised else {}
    made = []
    for op in (rotary_write, rotary_write_reference):
        q_out = torch.empty(rows, heads, head_dim, dtype=torch.bfloat16, device=device)
        keys, values = (store(device, kv_heads, slots, head_dim, scale) for scale in fixed)
        op(qkv.bfloat16(), positions, write_slots, table, q_out, keys, values, **more)
        made.append((keys, values))
    plain = [torch.empty(kv_heads, slots, head_dim, dtype=torch.bfloat16, device=device) for _ in range(2)]
    rotary_write(qkv.bfloat16(), positions, write_slots, table, q_out, *plain, **more)
    for ours, twin, bare, scale in zip(*made, plain, fixed, strict=True):
        if not normalised or bare is plain[1]:  # norms may differ in a last bit from the twin's
            assert torch.equal(ours.codes, twin.codes)
            assert torch.equal(ours.scales, twin.scales)
        written = write_slots[write_slots >= 0].long()
        codes, scales = encode(bare[:, written], scale)
        assert torch.equal(ours.codes[:, written], codes)
        assert torch.equal(ours.scales[:, written], scales)
        untouched = [slot for slot in range(slots) if slot not in written.tolist()]
        assert (ours.codes[:, untouched] == 9).all() and (ours.scales[:, untouched] == -1).all()


def test_one_row_of_a_layer_takes_both_steps(device):
    torch.manual_seed(1)
    x, weight = torch.randn(1, 128, device=device).bfloat16(), torch.randn(4 * 64, 128, device=device).bfloat16() / 8
    table = torch.from_numpy(Rope(10_000.0).table(9, 64)).to(device)
    at = [torch.tensor([each], dtype=torch.int32, device=device) for each in (5, 3)]
    made = []
    for op in (rotary_linear, rotary_linear_reference):
        qkv = torch.empty(1, 4 * 64, dtype=torch.bfloat16, device=device)
        q_out = torch.empty(1, 2, 64, dtype=torch.bfloat16, device=device)
        keys, values = store(device, 1, 4, 64, 0.0), store(device, 1, 4, 64, 0.0)
        op(x, weight, *at, table, qkv, q_out, keys, values)
        made.append(values)
    assert (made[0].codes[:, :3] == 9).all()
    assert torch.equal(made[0].scales, made[1].scales)


@pytest.mark.parametrize("op", [compact_kv, compact_kv_reference])
def test_accepted_nodes_bring_their_scales(device, op):
    torch.manual_seed(2)
    shape = 2, 3, 40, 64

    def random() -> Fp8Rows:
        return Fp8Rows(
            torch.randint(0, 127, shape, dtype=torch.uint8, device=device), torch.rand(shape[:3], device=device)
        )

    def ints(values) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    keys, values = random(), random()
    before = [(rows.codes.clone(), rows.scales.clone()) for rows in (keys, values)]
    result = torch.zeros(1, RESULT_WIDTH, dtype=torch.int32, device=device)
    result[0, 0], result[0, 2:4] = 2, ints([1, 2])
    op(keys, values, result, ints([[0, 4, 0, 5]]), ints([0, 1, 2, 3]), ints([20, 32, 33, 34]), ints([[1, 0]]), 16)
    for rows, (codes, scales) in zip((keys, values), before, strict=True):
        codes[:, :, [21, 22]], scales[:, :, [21, 22]] = codes[:, :, [33, 34]], scales[:, :, [33, 34]]
        assert torch.equal(rows.codes, codes) and torch.equal(rows.scales, scales)
