"""Attention of one row in torch, which the twins of all attention kernels share."""

from __future__ import annotations

import math

import torch

from slipstream_kernels.ops.attention_form import FULL, AttentionForm
from slipstream_kernels.ops.kv_cache.kv_codes import KVRows, rows_at


def committed_slots(page_table: torch.Tensor, page_size: int, line: int, begin: int, end: int) -> torch.Tensor:
    """int64 slots of positions begin .. end - 1 of a line of the page table."""
    positions = torch.arange(begin, end, device=page_table.device)
    return page_table[line, positions // page_size].long() * page_size + positions % page_size


def attend(
    query: torch.Tensor,
    keys: KVRows,
    values: KVRows,
    slots: torch.Tensor,
    form: AttentionForm = FULL,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """float64 [heads, head_dim]: softmax(query K^T / sqrt(head_dim)) V, or what `form` says, over `slots` in order.

    query [heads, head_dim], keys and values [kv_heads, slots, head_dim]. sinks [heads]: scores beside those of slots,
    without values. A function of the vectors it reads alone.
    """
    heads, head_dim = query.shape
    grouped = query.double().view(len(keys), -1, head_dim)
    slots = slots[form.first_seen(len(slots) - 1) :]
    scores = grouped @ rows_at(keys, slots).double().transpose(1, 2)
    scores = scores * form.scale if form.scale else scores / math.sqrt(head_dim)
    scores = form.cap * torch.tanh(scores / form.cap) if form.cap else scores
    if sinks is not None:
        scores = torch.cat([scores, sinks.double().view(*scores.shape[:2], 1)], -1)
    return (scores.softmax(-1)[..., : len(slots)] @ rows_at(values, slots).double()).view(heads, head_dim)
