from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.kernels.attention_scenes import Scene, Vectors, relative_error
from slipstream_kernels.ops.attention_form import FULL, AttentionForm

TOKENS = 512
ROUNDING = 5e-3
"""Relative error by norm that bfloat16 weights and outputs leave."""


def new_scene(*, kv_heads=1, group=4, head_dim=64, page_size=16, seed=0, device="cpu", form=FULL):
    return Scene(Vectors.random(TOKENS, kv_heads, group, head_dim, seed, device, form), page_size, seed)


def sequence(rng, length):
    return rng.integers(0, TOKENS, length)


def random_tree(rng, nodes):
    return [int(rng.integers(-1, node)) for node in range(nodes)]


def check(scene: Scene, columns: int = 64) -> None:
    attention = scene.build(padding=2)
    expected = torch.stack([scene.vectors.expected(own) for own in scene.sequences])
    for twins, limit in ((False, ROUNDING), (True, 3e-3)):
        out = attention.attend_in_tiles(columns=columns, twins=twins, padding=3)
        for row in range(len(expected)):
            assert relative_error(out[row], expected[row]) < limit, (row, len(scene.sequences[row]))
        assert out[len(expected) :].isnan().all(), "a padding row was written"
    if torch.cuda.is_available():  # the interpreter's matrix products keep no order of their own
        tiles, splits = attention.attend_in_tiles(columns=columns), attention.attend(columns=64)
        assert torch.equal(tiles[: len(expected)], splits[: len(expected)])


@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_roots_alone(device, page_size):
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
    """Rows of a tile see different parts of its blocks, some of them nothing of a block that others need."""
    rng = np.random.default_rng(abs(form.reach))
    scene = new_scene(device=device, form=form)
    scene.tree(sequence(rng, 253), [-1, 0, 1, 2, 3, 0, 5], sequence(rng, 7))
    scene.decode(sequence(rng, 129))
    check(scene)


@pytest.mark.parametrize(("kv_heads", "group"), [(2, 1), (1, 3), (2, 4), (1, 8)])
def test_trees_over_any_group_of_heads(device, kv_heads, group):
    rng = np.random.default_rng(group)
    scene = new_scene(kv_heads=kv_heads, group=group, device=device)
    scene.tree(sequence(rng, 120), random_tree(rng, 8), sequence(rng, 8))
    scene.decode(sequence(rng, 77))
    check(scene)


@pytest.mark.parametrize("base", [1, 60, 64, 121, 126, 128])
def test_paths_of_one_tree_cross_a_block_or_do_not(device, base):
    rng = np.random.default_rng(base)
    scene = new_scene(page_size=4, device=device)
    scene.tree(sequence(rng, base), [-1, 0, 1, 2, 3, 4, 0, 1, -1, 8, 5], sequence(rng, 11))
    check(scene)


def test_a_tree_of_several_segments(device):
    rng = np.random.default_rng(3)
    scene = new_scene(group=8, device=device)
    scene.tree(sequence(rng, 100), random_tree(rng, 20), sequence(rng, 20))
    check(scene)


def test_a_long_chain_crosses_a_split(device):
    rng = np.random.default_rng(4)
    scene = new_scene(group=1, device=device)
    scene.tree(sequence(rng, 127), range(-1, 62), sequence(rng, 63))
    check(scene)


def test_many_splits_and_a_bound_inside_the_tree(device):
    rng = np.random.default_rng(5)
    scene = new_scene(group=1, head_dim=128, device=device)
    scene.tree(sequence(rng, 2048 + 512 - 2), [-1, 0, 1, -1, 2], sequence(rng, 5))
    check(scene)


def test_two_segments_a_warp_group_wide(device):
    rng = np.random.default_rng(8)
    scene = new_scene(kv_heads=2, group=4, head_dim=128, page_size=64, device=device)
    scene.tree(sequence(rng, 190), random_tree(rng, 20), sequence(rng, 20))
    scene.decode(sequence(rng, 129))
    check(scene, columns=128)


def test_head_dim_256(device):
    rng = np.random.default_rng(10)
    scene = new_scene(group=2, head_dim=256, device=device)
    scene.tree(sequence(rng, 66), [-1, 0], sequence(rng, 2))
    check(scene)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numbers that are none, in the interpreter
def test_a_node_that_is_no_number_spoils_its_own_path_alone(device):
    """A drafted token may stand for an embedding that was never trained."""
    rng = np.random.default_rng(9)
    scene = new_scene(device=device)
    root = scene.tree(sequence(rng, 62), [-1, 0, 1, -1, 2], sequence(rng, 5))
    attention = scene.build()
    expected = attention.attend_in_tiles(columns=64)
    slot = int(attention.write_slots[root + 3])
    attention.keys[:, slot] = torch.nan
    attention.values[:, slot] = torch.inf
    out = attention.attend_in_tiles(columns=64)
    spoilt = [root + 3, root + 5]
    sound = [root + place for place in range(6) if root + place not in spoilt]
    assert torch.equal(out[sound], expected[sound])
    assert out[spoilt].isnan().all()
