from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream_kernels.ops.attention_form import FULL, AttentionForm
from slipstream_kernels.ops.tree_attention import tree_attention, tree_attention_reference

KV_HEADS, SLOTS = 2, 256


def random(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def as_torch(plan: dict[str, object]) -> dict[str, object]:
    return {name: torch.tensor(value) if isinstance(value, np.ndarray) else value for name, value in plan.items()}


PLAN = {
    "page_size": 16,
    "page_table": np.array([[3, 1, 7, 0], [2, 5, 6, 4]], np.int32),
    "page_lines": np.array([0, 1, 1, 0], np.int32),
    "prefix_lengths": np.array([1, 50, 17, 64], np.int32),
    "ancestor_slots": np.array([[9, 9, 9], [130, 150, 199], [140, 9, 9], [150, 151, 9]], np.int32),
    "num_ancestors": np.array([0, 3, 1, 2], np.int32),
}


@pytest.mark.parametrize("head_dim", [16, 48, 64, 80, 128, 208])
@pytest.mark.parametrize("heads", [2, 6])
def test_matches_float64(head_dim: int, heads: int) -> None:
    q = random(4, heads, head_dim, seed=0)
    keys, values = random(KV_HEADS, SLOTS, head_dim, seed=1), random(KV_HEADS, SLOTS, head_dim, seed=2)
    got = tree_attention(q, keys, values, **PLAN)
    inputs = (torch.tensor(array).double() for array in (q, keys, values))
    np.testing.assert_allclose(got, tree_attention_reference(*inputs, **as_torch(PLAN)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", [AttentionForm(chunk=chunk) for chunk in (1, 16, 17, 52, 64)])
def test_a_row_sees_its_own_chunk(form: AttentionForm) -> None:
    """As it would see its positions from the chunk's first one on; chunks begin in the pages and in the tree."""
    q = random(4, 2, 16, seed=0)
    keys, values = random(KV_HEADS, SLOTS, 16, seed=1), random(KV_HEADS, SLOTS, 16, seed=2)
    got = tree_attention(q, keys, values, **PLAN, form=form)
    inputs = (torch.tensor(array).double() for array in (q, keys, values))
    expected = tree_attention_reference(*inputs, **as_torch(PLAN), form=form)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    for row, (line, prefix, ancestors) in enumerate(((0, 1, 0), (1, 50, 3), (1, 17, 1), (0, 64, 2))):
        table, path = PLAN["page_table"][line], PLAN["ancestor_slots"][row]  # type: ignore[index]
        slots = [table[p // 16] * 16 + p % 16 for p in range(prefix)] + list(path[:ancestors])
        own = np.array(slots[(len(slots) - 1) // form.chunk * form.chunk :])
        scores = np.einsum("hd,hpd->hp", q[row].astype(float), keys[:, own].astype(float)) / 4
        weights = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        np.testing.assert_allclose(got[row], np.einsum("hp,hpd->hd", weights, values[:, own]), rtol=1e-4, atol=1e-5)


@given(
    length=st.integers(1, 100),
    prefix=st.integers(0, 100),
    page_size=st.sampled_from([1, 3, 16, 64]),
    neighbours=st.integers(0, 3),
    form=st.sampled_from([FULL, AttentionForm(window=20), AttentionForm(chunk=16), AttentionForm(chunk=30)]),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60)
def test_a_row_depends_on_its_positions_alone(
    length: int, prefix: int, page_size: int, neighbours: int, form: AttentionForm, seed: int
) -> None:
    """Any page layout, any split between pages and tree, any company, everything else poisoned: equal bits."""
    prefix = min(prefix, length)
    rng = np.random.default_rng(seed)
    q, k, v = (rng.normal(size=shape).astype(np.float32) for shape in ((1, 4, 32), (2, 100, 32), (2, 100, 32)))

    def attend(prefix: int, page_size: int, neighbours: int) -> np.ndarray:
        pages = -(-max(prefix, 1) // page_size)
        slots = (pages + 2) * page_size + 110
        keys, values = (np.full((2, slots, 32), np.nan, np.float32) for _ in range(2))
        table = rng.permutation(pages + 2)[:pages].astype(np.int32)
        path = (pages + 2) * page_size + rng.permutation(110)[: length - prefix]
        own = np.concatenate([table[np.arange(prefix) // page_size] * page_size + np.arange(prefix) % page_size, path])
        seen = slice(form.first_seen(length - 1), length)
        keys[:, own[seen]], values[:, own[seen]] = k[:, seen], v[:, seen]
        rows = neighbours + 1
        ancestors = np.zeros((rows, 101), np.int32)
        ancestors[:, : length - prefix] = path
        got = tree_attention(
            np.concatenate([rng.normal(size=(neighbours, 4, 32)).astype(np.float32), q]),
            keys,
            values,
            page_size=page_size,
            page_table=table[None],
            page_lines=np.zeros(rows, np.int32),
            prefix_lengths=np.full(rows, prefix, np.int32),
            ancestor_slots=ancestors,
            num_ancestors=np.full(rows, length - prefix, np.int32),
            form=form,
        )
        assert np.isfinite(got).all()
        return got[-1]

    assert np.array_equal(attend(prefix, page_size, neighbours), attend(length, 100, 0))


def test_extreme_scores_stay_finite() -> None:
    q = np.full((1, 2, 16), 1e4, np.float32)
    keys = np.concatenate([np.full((2, 1, 16), -1e4), np.full((2, 1, 16), 1e4)], axis=1).astype(np.float32)
    values = random(2, 2, 16, seed=0)
    plan = {
        "page_size": 2,
        "page_table": np.zeros((1, 1), np.int32),
        "page_lines": np.zeros(1, np.int32),
        "prefix_lengths": np.array([2], np.int32),
        "ancestor_slots": np.zeros((1, 1), np.int32),
        "num_ancestors": np.zeros(1, np.int32),
    }
    np.testing.assert_allclose(tree_attention(q, keys, values, **plan)[0], values[:, 1], rtol=1e-6)


@pytest.mark.parametrize("where", ["query", "key", "value"])
def test_what_is_no_number_is_passed_on(where: str) -> None:
    q, keys, values = random(2, 2, 16, seed=0), random(2, 3, 16, seed=1), random(2, 3, 16, seed=2)
    plan = {
        "page_size": 1,
        "page_table": np.array([[0, 1], [2, 0]], np.int32),
        "page_lines": np.array([0, 1], np.int32),
        "prefix_lengths": np.array([2, 1], np.int32),
        "ancestor_slots": np.zeros((2, 1), np.int32),
        "num_ancestors": np.zeros(2, np.int32),
    }
    expected = tree_attention(q, keys, values, **plan)
    {"query": q[0], "key": keys[:, 1], "value": values[:, 1]}[where][:, 3] = np.nan
    got = tree_attention(q, keys, values, **plan)
    assert np.isnan(got[0]).any(axis=-1).all() and np.array_equal(got[1], expected[1])


def test_a_sink_takes_its_share() -> None:
    """Its score may be above and below those of positions; one of minus infinity changes no bit."""
    rng = np.random.default_rng(7)
    q, keys, values = (rng.normal(size=shape).astype(np.float32) for shape in ((1, 4, 32), (2, 9, 32), (2, 9, 32)))
    plan = {
        "page_size": 9, "page_table": np.zeros((1, 1), np.int32), "page_lines": np.zeros(1, np.int32),
        "prefix_lengths": np.full(1, 9, np.int32), "ancestor_slots": np.zeros((1, 1), np.int32),
        "num_ancestors": np.zeros(1, np.int32),
    }  # fmt: skip
    tensors = {name: torch.tensor(each) if isinstance(each, np.ndarray) else each for name, each in plan.items()}
    sinks = np.array([-3, 0.5, 40, -np.inf], np.float32)
    found = tree_attention(q, keys, values, **plan, sinks=sinks)
    doubles = (torch.tensor(each).double() for each in (q, keys, values))
    expected = tree_attention_reference(*doubles, **tensors, sinks=torch.tensor(sinks)).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
    assert np.array_equal(found[0, 3], tree_attention(q, keys, values, **plan)[0, 3])
