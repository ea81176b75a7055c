"""Gathers the target's hidden states of the accepted rows, for a draft round queued behind the target's pass.

`follows` is as in `truncate_to_accepted`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import launch, wait_for_previous
from slipstream_kernels.ops.gpu.tree_walk import RESULT_WIDTH
from slipstream_kernels.ops.gpu.truncate_to_accepted import FOLLOW, rows_left

_LISTED = 64
"""Sessions of a round, usually at most: kernels are compiled for so many at least."""
_BLOCK = 1024
"""Numbers of a state that a program copies."""


@triton.jit(do_not_specialize=["sessions"], do_not_specialize_on_alignment=["results", "source"])
def _take_states(
    follows: tl.tensor,
    results: tl.tensor,
    source: tl.tensor,
    features: tl.tensor,
    sessions: int,
    SESSIONS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    RESULT: tl.constexpr,
    FOLLOW: tl.constexpr,
) -> None:
    """A block of numbers of one row of text a program. It releases as little as `_settle_text`."""
    wait_for_previous()
    row = tl.program_id(0)
    listed = tl.arange(0, SESSIONS)
    held = listed < sessions
    begins = tl.load(follows + listed * FOLLOW + 1, mask=held, other=0)
    rows = tl.load(follows + listed * FOLLOW + 2, mask=held, other=0)
    session = tl.min(tl.where((row >= begins) & (row - begins < rows), listed, SESSIONS))
    if session < SESSIONS:
        follow = follows + session * FOLLOW
        index = row - tl.load(follow + 1)
        accepted = tl.load(results + tl.load(follow).to(tl.int64) * RESULT)
        if index <= tl.maximum(accepted, 0):
            column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
            inside = column < WIDTH
            state = source + tl.load(follow + 3).to(tl.int64) + index.to(tl.int64) * WIDTH
            moved = tl.load(state + column, mask=inside)
            tl.store(features + row.to(tl.int64) * WIDTH + column, moved, mask=inside)


def take_states(follows: torch.Tensor, results: torch.Tensor, source: torch.Tensor, features: torch.Tensor) -> None:
    """Copy the target's hidden states of the live rows.

    follows, results: int32, as for `truncate_to_accepted`.
    source: bfloat16 [any], a session's states end to end from its offset on.
    features: bfloat16 [text rows, F], written; padding rows stay as they are.
    """
    assert results.shape[1] == RESULT_WIDTH
    assert results.is_contiguous()
    assert source.is_contiguous()
    assert features.is_contiguous()
    width = features.shape[1]
    block = min(_BLOCK, triton.next_power_of_2(width))
    launch(
        _take_states,
        (len(features), triton.cdiv(width, block)),
        follows,
        results,
        source,
        features,
        len(follows),
        SESSIONS=max(_LISTED, triton.next_power_of_2(len(follows))),
        WIDTH=width,
        BLOCK=block,
        RESULT=RESULT_WIDTH,
        FOLLOW=FOLLOW,
    )


def take_states_reference(
    follows: torch.Tensor, results: torch.Tensor, source: torch.Tensor, features: torch.Tensor
) -> None:
    """The same in torch."""
    width = features.shape[1]
    for at, first, rows, offset, *_ in follows.tolist():
        if rows:
            left = rows_left(results, at, rows)
            features[first : first + left] = source[offset : offset + left * width].view(left, width)
