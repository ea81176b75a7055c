from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.kernels.attention_scenes import Scene, Vectors, relative_error
from slipstream_kernels.ops.attention_form import FULL, AttentionForm
from slipstream_kernels.ops.gpu.position_splits import BLOCK
from slipstream_kernels.ops.gpu.prefill_attention import prefill_tiles

TOKENS = 512


def check(chunks, *, kv_heads=1, group=4, head_dim=64, page_size=16, columns=128, device="cpu", form=FULL):
    """`chunks`: (first position, position behind the last) of prompts."""
    rng = np.random.default_rng(page_size)
    scene = Scene(Vectors.random(TOKENS, kv_heads, group, head_dim, 1, device, form), page_size)
    for first, end in chunks:
        scene.prefill(rng.integers(0, TOKENS, end), first)
    attention = scene.build(padding=2)
    expected = torch.stack([scene.vectors.expected(own) for own in scene.sequences])
    for twins, limit in ((False, 4e-3), (True, 3e-3)):
        out = attention.attend(columns=64, prefill_columns=columns, twins=twins, padding=2)
        for row in range(len(expected)):
            assert relative_error(out[row], expected[row]) < limit, (row, len(scene.sequences[row]))
        assert out[len(expected) :].isnan().all(), "a padding row was written"


@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_whole_prompts(device, page_size):
    check([(0, 1), (0, 40), (0, 131)], page_size=page_size, device=device)


@pytest.mark.parametrize(("kv_heads", "group"), [(1, 3), (2, 1), (1, 8)])
def test_any_group_of_heads(device, kv_heads, group):
    check([(0, 70)], kv_heads=kv_heads, group=group, device=device)


@pytest.mark.parametrize(
    "form",
    [
        AttentionForm(window=1),
        AttentionForm(window=70, cap=2.0, sinks=True),
        AttentionForm(scale=0.05, cap=1.0),
        AttentionForm(chunk=1),
        AttentionForm(chunk=37, sinks=True),
        AttentionForm(chunk=128),
    ],
)
def test_windows_scales_bounds_and_chunks(device, form):
    check([(60, 66), (127, 140), (250, 258)], device=device, form=form)


def test_chunks_that_continue_a_prompt(device):
    check([(50, 66), (63, 64), (64, 65), (127, 129), (250, 260)], device=device)


def test_wider_splits_and_head_dim_128(device):
    check([(2048 + 512 - 3, 2048 + 512 + 3)], group=1, head_dim=128, device=device)


@pytest.mark.parametrize("group", [1, 3, 4, 7, 8])
def test_tiles_hold_every_row_once_and_stay_in_a_block(group):
    tiles = prefill_tiles(5, 300, 2, 37, group)
    assert sorted(row for first, rows, *_ in tiles for row in range(first, first + rows)) == list(range(5, 305))
    for first, rows, line, position in tiles:
        assert 0 < rows <= 128 // group
        assert (line, position) == (2, 37 + first - 5)
        assert position // BLOCK == (position + rows - 1) // BLOCK
    assert [tile[3] for tile in tiles] == sorted((tile[3] for tile in tiles), reverse=True)
