from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.kernels.attention_scenes import Pass, Scene, Vectors, relative_error
from slipstream_kernels.ops.attention_form import FULL, AttentionForm

TOKENS = 512
ROUNDING = 4e-3
"""Relative error by norm that bfloat16 weights and outputs leave."""


def new_scene(*, kv_heads=1, group=3, head_dim=64, page_size=16, seed=0, device="cpu", form=FULL):
    return Scene(Vectors.random(TOKENS, kv_heads, group, head_dim, seed, device, form), page_size, seed)


def sequence(rng, length):
    return rng.integers(0, TOKENS, length)


def random_tree(rng, nodes):
    return [int(rng.integers(-1, node)) for node in range(nodes)]


def check(scene: Scene, columns: int = 64) -> None:
    attention: Pass = scene.build(padding=2)
    expected = torch.stack([scene.vectors.expected(own) for own in scene.sequences])
    for twins, limit in ((False, ROUNDING), (True, 3e-3)):
        out = attention.attend(columns=columns, twins=twins, padding=3)
        for row in range(len(expected)):
            assert relative_error(out[row], expected[row]) < limit, (row, len(scene.sequences[row]))
        assert out[len(expected) :].isnan().all(), "a padding row was written"


@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_decode_rows(device, page_size):
    rng = np.random.default_rng(page_size)
    scene = new_scene(page_size=page_size, device=device)
    for context in (1, 63, 64, 65, 128, 129, 300):
        scene.decode(sequence(rng, context))
    check(scene)


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
    """A node's window or chunk bounds its ancestors and its prefix; splits below it hold nothing and are not read."""
    rng = np.random.default_rng(abs(form.reach))
    scene = new_scene(device=device, form=form)
    for context in (1, 129):
        scene.decode(sequence(rng, context))
    scene.tree(sequence(rng, 253), [-1, 0, 1, 2, 3, 0, 5], sequence(rng, 7))
    check(scene)


@pytest.mark.parametrize(("kv_heads", "group"), [(2, 1), (2, 4), (1, 8)])
def test_trees_over_any_group_of_heads(device, kv_heads, group):
    rng = np.random.default_rng(group)
    scene = new_scene(kv_heads=kv_heads, group=group, device=device)
    scene.tree(sequence(rng, 120), random_tree(rng, 8), sequence(rng, 8))
    scene.decode(sequence(rng, 77))
    check(scene, columns=64)


@pytest.mark.parametrize(("base", "depth"), [(60, 8), (64, 3), (121, 10), (127, 63)])
def test_a_chain_crosses_blocks_and_splits(device, base, depth):
    rng = np.random.default_rng(base)
    scene = new_scene(group=4, page_size=4, device=device)
    scene.tree(sequence(rng, base), range(-1, depth - 1), sequence(rng, depth))
    check(scene, columns=64)


def test_many_splits_and_a_bound_inside_the_tail(device):
    rng = np.random.default_rng(5)
    scene = new_scene(group=1, head_dim=128, device=device)
    scene.tree(sequence(rng, 2048 + 512 - 2), [-1, 0, 1, -1], sequence(rng, 4))
    scene.decode(sequence(rng, 2048))
    check(scene)


def test_a_page_is_a_block(device):
    rng = np.random.default_rng(8)
    scene = new_scene(kv_heads=2, group=1, head_dim=128, page_size=64, device=device)
    scene.tree(sequence(rng, 190), [-1, 0, 1, 0], sequence(rng, 4))
    scene.decode(sequence(rng, 129))
    check(scene, columns=128)


def test_twins_of_decode_and_prefill_agree_bit_for_bit(device):
    rng = np.random.default_rng(6)
    scene = new_scene(kv_heads=2, group=2, device=device)
    tokens = sequence(rng, 90)
    chain = sequence(rng, 3)
    root = scene.tree(tokens, [-1, 0, 1], chain)
    whole = scene.prefill(np.concatenate([tokens, chain]), 85)
    out = scene.build().attend(columns=64, twins=True)
    assert torch.equal(out[root : root + 4], out[whole + 4 : whole + 8])


@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="the interpreter's matrix products keep no order of their own"
)
def test_a_node_has_the_bits_of_its_token_decoded_alone_or_prefilled(device):
    rng = np.random.default_rng(7)
    scene = new_scene(kv_heads=2, group=4, head_dim=128, device=device)
    root = scene.tree(sequence(rng, 1000), random_tree(rng, 63), sequence(rng, 63))
    alone = [scene.decode(scene.sequences[root + node], scene.line_of(root)) for node in range(64)]
    whole = [scene.prefill(scene.sequences[root + node], 990, scene.line_of(root)) + 9 for node in range(64)]
    whole = [row + len(scene.sequences[root + node]) - 1000 for node, row in enumerate(whole)]
    out = scene.build().attend(columns=64)
    assert torch.equal(out[root : root + 64], out[alone])
    assert torch.equal(out[root : root + 64], out[whole])
