from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.kernels.attention_scenes import Pass, Scene, Vectors, relative_error
from slipstream_kernels.ops.gpu.attention_state import AttentionPartials
from slipstream_kernels.ops.gpu.position_splits import num_splits, own_block
from slipstream_kernels.ops.gpu.prefix_attention import PrefixPrograms, prefix_attention, prefix_attention_reference

TOKENS = 512


def scene(contexts, *, kv_heads=2, group=4, head_dim=64, page_size=16, nodes=0, device="cpu"):
    """A tree of `nodes` children below each context, or a decode row."""
    rng = np.random.default_rng(sum(contexts))
    built = Scene(Vectors.random(TOKENS, kv_heads, group, head_dim, len(contexts), device), page_size)
    for context in contexts:
        built.tree(rng.integers(0, TOKENS, context), [-1] * nodes, rng.integers(0, TOKENS, nodes))
    return built.build(padding=2)


def states(attention: Pass, run, columns: int, padding: int = 3) -> AttentionPartials:
    partials = attention.partials()
    segments, offsets = attention.segments(columns, padding)
    kv = (attention.q, attention.keys, attention.values, attention.page_table, attention.page_size)
    run(*kv, segments, offsets, partials, columns=columns, programs=PrefixPrograms(5, 5, None))
    return partials


def check(attention: Pass, columns: int) -> None:
    ours, theirs = (states(attention, run, columns) for run in (prefix_attention, prefix_attention_reference))
    held = torch.zeros(len(attention.q), ours.l.shape[2], dtype=torch.bool, device=attention.q.device)
    for first, rows, _, length in attention.spans:
        held[first : first + rows, : num_splits(own_block(length))] = True
    held = held[:, None, :].expand_as(ours.l)
    assert held.any()
    for own, reference, limit in ((ours.m, theirs.m, 1e-5), (ours.l, theirs.l, 1e-5), (ours.o, theirs.o, 4e-3)):
        assert relative_error(own[held], reference[held].double()) < limit
        assert own[~held].isnan().all(), "a state was written that no full block fills"


@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_states_of_decode_rows(device, page_size):
    check(scene((63, 64, 65, 127, 128, 129, 320), page_size=page_size, device=device), 64)


@pytest.mark.parametrize(("kv_heads", "group"), [(1, 3), (2, 1), (1, 8), (3, 4)])
def test_any_group_of_heads(device, kv_heads, group):
    check(scene((130, 70), kv_heads=kv_heads, group=group, device=device), 64)


@pytest.mark.parametrize("columns", [64, 128])
def test_rows_of_a_tree_share_the_reading(device, columns):
    check(scene((200, 91), nodes=18, group=3, kv_heads=1, device=device), columns)


def test_wider_splits_and_head_dim_128(device):
    check(scene((2048 + 512 + 64,), kv_heads=1, group=2, head_dim=128, device=device), 64)


def test_nothing_to_do(device):
    attention = scene((63, 1), device=device)
    for tensor in (states(attention, prefix_attention, 64).o, states(attention, prefix_attention_reference, 64).o):
        assert tensor.isnan().all()
