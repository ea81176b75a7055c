"""What a draft head's rows start from: the embedding of a token beside the state of another row.

EAGLE heads (arXiv 2401.15077, 2503.01840) and MTP layers (arXiv 2412.19437, section 2.2) read the two side by side.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.gather_norm import gather_norm_reference, normed_row, row_tile
from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous


@triton.jit
def _join_rows(
    token_ids: tl.tensor,
    table: tl.tensor,
    embedding_norm: tl.tensor,
    states: tl.tensor,
    state_rows: tl.tensor,
    state_norm: tl.tensor,
    joined: tl.tensor,
    residual: tl.tensor,
    state_stride: int,
    joined_stride: int,
    residual_stride: int,
    eps: float,
    VOCAB: tl.constexpr,
    EMBEDDED: tl.constexpr,
    STATE: tl.constexpr,
    TILE: tl.constexpr,
    EMBEDDING_NORMED: tl.constexpr,
    STATE_NORMED: tl.constexpr,
    CHOSEN: tl.constexpr,
    RESIDUAL: tl.constexpr,
) -> None:
    """Programs (row, 0) write embeddings, programs (row, 1) states. RESIDUAL: 0 none, 1 as is, 2 normalised."""
    release_next()
    wait_for_previous()
    row = tl.program_id(0)
    columns = tl.arange(0, TILE)
    target = joined + row.to(tl.int64) * joined_stride
    if tl.program_id(1) == 0:
        token = tl.minimum(tl.maximum(tl.load(token_ids + row), 0), VOCAB - 1).to(tl.int64)
        embedded = normed_row(table + token * EMBEDDED, embedding_norm, eps, EMBEDDED, TILE, EMBEDDING_NORMED)
        tl.store(target + columns, embedded, mask=columns < EMBEDDED)
    else:
        source = row
        if CHOSEN:
            source = tl.maximum(tl.load(state_rows + row), 0)
        at = states + source.to(tl.int64) * state_stride
        state = normed_row(at, state_norm, eps, STATE, TILE, STATE_NORMED)
        inside = columns < STATE
        tl.store(target + EMBEDDED + columns, state, mask=inside)
        if RESIDUAL == 1:
            state = tl.load(at + columns, mask=inside)
        if RESIDUAL > 0:
            tl.store(residual + row.to(tl.int64) * residual_stride + columns, state, mask=inside)


def join_rows(
    token_ids: torch.Tensor,
    table: torch.Tensor,
    embedding_norm: torch.Tensor | None,
    states: torch.Tensor,
    state_rows: torch.Tensor | None,
    state_norm: torch.Tensor | None,
    eps: float,
    joined: torch.Tensor,
    residual: torch.Tensor | None = None,
    *,
    residual_normed: bool = False,
) -> None:
    """joined[i] = (embedding of token_ids[i], states[state_rows[i]]), each normalised where it has a weight.

    bfloat16 table [vocab, hidden], contiguous; states [n, width]; joined [rows, hidden + width]; weights [hidden] and
    [width]; residual [rows, width], if wanted, gets the states alone, as they are or as they are joined. int32
    token_ids and state_rows [rows]; a token outside the vocabulary is taken to its nearest end, a row of -1 to the
    first; without state_rows it is row i. Outputs are no part of `states`.
    """
    vocab, hidden = table.shape
    width = states.shape[1]
    assert table.is_contiguous()
    assert joined.shape == (len(token_ids), hidden + width)
    tile, warps = row_tile(max(hidden, width))
    launch(
        _join_rows,
        (len(token_ids), 2),
        token_ids,
        table,
        table if embedding_norm is None else embedding_norm,
        states,
        token_ids if state_rows is None else state_rows,
        table if state_norm is None else state_norm,
        joined,
        joined if residual is None else residual,
        states.stride(0),
        joined.stride(0),
        0 if residual is None else residual.stride(0),
        eps,
        warps=warps,
        VOCAB=vocab,
        EMBEDDED=hidden,
        STATE=width,
        TILE=tile,
        EMBEDDING_NORMED=embedding_norm is not None,
        STATE_NORMED=state_norm is not None,
        CHOSEN=state_rows is not None,
        RESIDUAL=0 if residual is None else 1 + residual_normed,
    )


def join_rows_reference(
    token_ids: torch.Tensor,
    table: torch.Tensor,
    embedding_norm: torch.Tensor | None,
    states: torch.Tensor,
    state_rows: torch.Tensor | None,
    state_norm: torch.Tensor | None,
    eps: float,
    joined: torch.Tensor,
    residual: torch.Tensor | None = None,
    *,
    residual_normed: bool = False,
) -> None:
    """The same in torch."""
    hidden = table.shape[1]
    tokens = token_ids.clamp(0, len(table) - 1)
    gather_norm_reference(table, tokens, embedding_norm, joined[:, :hidden], eps)
    gather_norm_reference(states, state_rows, state_norm, joined[:, hidden:], eps)
    if residual is not None:
        gather_norm_reference(states, state_rows, state_norm if residual_normed else None, residual, eps)
