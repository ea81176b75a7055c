"""Scattered updates of tables that live on the device."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous

_BLOCK = 256


@triton.jit(do_not_specialize=["count"])
def _write_words(table: tl.tensor, updates: tl.tensor, count: int, BLOCK: tl.constexpr) -> None:
    release_next()
    wait_for_previous()
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    index = tl.load(updates + 2 * places, mask=places < count, other=-1)
    word = tl.load(updates + 2 * places + 1, mask=places < count, other=0)
    tl.store(table + index, word, mask=index >= 0)


def write_words(table: torch.Tensor, updates: torch.Tensor) -> None:
    """table[updates[i, 0]] = updates[i, 1]: int32 table [words], updates [n, 2], an index of -1 being padding.

    An index that occurs twice must come with equal words.
    """
    launch(_write_words, (triton.cdiv(len(updates), _BLOCK),), table, updates, len(updates), BLOCK=_BLOCK)


def write_words_reference(table: torch.Tensor, updates: torch.Tensor) -> None:
    """The same in torch."""
    used = updates[updates[:, 0] >= 0]
    table[used[:, 0].long()] = used[:, 1]
