"""A row's own chain of keys and values beside a text that has been attended to already: its softmax and gradients."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit(do_not_specialize=["rows", "kv_heads", "steps"])
def _merge_chain(
    query: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    places: tl.tensor,
    out: tl.tensor,
    ends: tl.tensor,
    merged: tl.tensor,
    rows: int,
    kv_heads: int,
    steps: int,
    scale: float,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
) -> None:
    row, kv = tl.program_id(0).to(tl.int64), tl.program_id(1)
    head, column = tl.arange(0, HEADS), tl.arange(0, DIM)
    mine = head < GROUP
    inside = mine[:, None] & (column >= 0)[None, :]
    heads = kv * GROUP + head
    wide = kv_heads * GROUP
    at = (row * wide + heads)[:, None] * DIM + column[None, :]
    place = tl.load(places + row)
    there = (place * wide + heads)[:, None] * DIM + column[None, :]
    asked = tl.load(query + at, mask=inside, other=0.0).to(tl.float32)
    seen = tl.load(out + there, mask=inside, other=0.0).to(tl.float32)
    most = tl.load(ends + place * wide + heads, mask=mine, other=0.0)
    total = tl.full((HEADS,), 1.0, tl.float32)
    for step in range(steps):
        own = ((step * rows + row) * kv_heads + kv) * DIM + column
        key = tl.load(keys + own).to(tl.float32)
        value = tl.load(values + own).to(tl.float32)
        score = tl.sum(asked * key[None, :], axis=1) * scale
        above = tl.maximum(most, score)
        before, part = tl.exp(most - above), tl.exp(score - above)
        seen = seen * before[:, None] + part[:, None] * value[None, :]
        total = total * before + part
        most = above
    result = (seen / total[:, None]).to(merged.dtype.element_ty)
    tl.store(merged + at, result, mask=inside)
    tl.store(out + there, result, mask=inside)
    tl.store(ends + place * wide + heads, most + tl.log(total), mask=mine)


@triton.jit(do_not_specialize=["rows", "kv_heads", "steps"])
def _derive_chain(
    grad: tl.tensor,
    merged: tl.tensor,
    query: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    places: tl.tensor,
    ends: tl.tensor,
    of_text: tl.tensor,
    of_query: tl.tensor,
    of_keys: tl.tensor,
    of_values: tl.tensor,
    rows: int,
    kv_heads: int,
    steps: int,
    scale: float,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
) -> None:
    row, kv = tl.program_id(0).to(tl.int64), tl.program_id(1)
    head, column = tl.arange(0, HEADS), tl.arange(0, DIM)
    mine = head < GROUP
    inside = mine[:, None] & (column >= 0)[None, :]
    heads = kv * GROUP + head
    wide = kv_heads * GROUP
    at = (row * wide + heads)[:, None] * DIM + column[None, :]
    place = tl.load(places + row)
    there = (place * wide + heads)[:, None] * DIM + column[None, :]
    asked = tl.load(query + at, mask=inside, other=0.0).to(tl.float32)
    given = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    common = tl.sum(given * tl.load(merged + at, mask=inside, other=0.0).to(tl.float32), axis=1)
    total = tl.load(ends + place * wide + heads, mask=mine, other=0.0)
    result = tl.load(of_text + there, mask=inside, other=0.0).to(tl.float32)
    for step in range(steps):
        own = ((step * rows + row) * kv_heads + kv) * DIM + column
        key = tl.load(keys + own).to(tl.float32)
        value = tl.load(values + own).to(tl.float32)
        share = tl.where(mine, tl.exp(tl.sum(asked * key[None, :], axis=1) * scale - total), 0.0)
        error = share * (tl.sum(given * value[None, :], axis=1) - common) * scale
        result += error[:, None] * key[None, :]
        tl.store(of_keys + own, tl.sum(error[:, None] * asked, axis=0).to(of_keys.dtype.element_ty))
        tl.store(of_values + own, tl.sum(share[:, None] * given, axis=0).to(of_values.dtype.element_ty))
    tl.store(of_query + at, result.to(of_query.dtype.element_ty), mask=inside)


def merge_chain(query: Tensor, keys: Tensor, values: Tensor, places: Tensor, out: Tensor, ends: Tensor) -> Tensor:
    """Add a chain to what queries [n, heads, head_dim] have seen of a text: [n, heads, head_dim].

    keys, values [steps, n, kv_heads, head_dim]. places int64 [n] are those of the queries in `out` [places, heads,
    head_dim], what was seen, and in `ends` float32 [places, heads], the logarithms of its normalisers; both are
    written over with what takes all into account. head_dim is a power of two.
    """
    merged = torch.empty_like(query)
    if len(query):
        _launch(_merge_chain, query, keys, (query, keys, values, places, out, ends, merged))
    return merged


def derive_chain(
    grad: Tensor,
    merged: Tensor,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    places: Tensor,
    ends: Tensor,
    of_text: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values of `merge_chain`, which gave `merged` and `ends`, for its gradient `grad`.

    of_text [places, heads, head_dim]: what the text has of the queries' gradients, to which the chain's are added.
    """
    of_query, of_keys, of_values = torch.empty_like(query), torch.empty_like(keys), torch.empty_like(values)
    if len(query):
        arguments = (grad, merged, query, keys, values, places, ends, of_text, of_query, of_keys, of_values)
        _launch(_derive_chain, query, keys, arguments)
    return of_query, of_keys, of_values


def _launch(kernel: triton.JITFunction, query: Tensor, keys: Tensor, tensors: tuple[Tensor, ...]) -> None:
    assert all(tensor.is_contiguous() for tensor in tensors)
    rows, heads, dim = query.shape
    steps, _, kv_heads, _ = keys.shape
    group = heads // kv_heads
    sizes = {"GROUP": group, "HEADS": triton.next_power_of_2(group), "DIM": dim}
    kernel[(rows, kv_heads)](
        *tensors, rows, kv_heads, steps, dim**-0.5, **sizes, num_warps=1 if dim * group < 1024 else 4
    )
