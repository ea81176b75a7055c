"""Keys and values of 8 bits in the kernels: written as `kv_codes` says, and read as the numbers that they stand for."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.kernels.attention_scenes import Scene, Vectors
from slipstream_kernels.ops.attention_form import FULL, AttentionForm
from slipstream_kernels.ops.gpu.compaction import compact_kv, compact_kv_reference
from slipstream_kernels.ops.gpu.rotary import rotary_write, rotary_write_reference
from slipstream_kernels.ops.gpu.rotary_linear import rotary_linear, rotary_linear_reference
from slipstream_kernels.ops.gpu.tree_walk import RESULT_WIDTH
from slipstream_kernels.ops.kv_cache.kv_codes import Fp8Rows, encode
from slipstream_kernels.ops.rope import Rope

TOKENS = 256
FIXED = [(0.0, 0.0), (0.0371, 2.5)]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.int16), b.contiguous().view(torch.int16))


@pytest.mark.parametrize("fixed", FIXED, ids=["own", "fixed"])
@pytest.mark.parametrize("form", [FULL, AttentionForm(window=70, cap=2.0, sinks=True)], ids=["full", "window"])
def test_attention_has_the_bits_of_the_numbers_that_codes_stand_for(device, form, fixed):
    rng = np.random.default_rng(0)
    vectors = Vectors.random(TOKENS, 2, 2, 64, 1, device, form)
    scene = Scene(vectors, 16)
    scene.tree(rng.integers(0, TOKENS, 62), [-1, 0, 1, 0], rng.integers(0, TOKENS, 4))
    scene.decode(rng.integers(0, TOKENS, 130))
    scene.prefill(rng.integers(0, TOKENS, 70), 60)
    coded, plain = scene.build(padding=1).in_codes(fixed)
    rows = len(scene.sequences)
    for twins in (False, True):
        got, expected = (each.attend(columns=64, twins=twins, padding=1)[:rows] for each in (coded, plain))
        assert got.isfinite().all()
        assert same_bits(got, expected)
    decoding = scene.build(padding=1).decode_rows.clamp(min=0).long()
    got, expected = (each.attend_in_tiles(columns=64, padding=1)[decoding] for each in (coded, plain))
    assert same_bits(got, expected)


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
