"""Token embedding, with tokens that only the device knows yet taken from where the last step left them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.rounding import rounded

_BLOCK = 2048


@triton.jit
def _embed(
    token_ids: tl.tensor,
    lines: tl.tensor,
    last_tokens: tl.tensor,
    table: tl.tensor,
    out: tl.tensor,
    resolved_ids: tl.tensor,
    VOCAB: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    SCALE: tl.constexpr,
) -> None:
    release_next()
    wait_for_previous()
    row = tl.program_id(0)
    chunk = tl.program_id(1)
    token = tl.load(token_ids + row)
    line = tl.load(lines + row)
    token = tl.load(last_tokens + line, mask=token < 0, other=token)
    token = tl.minimum(tl.maximum(token, 0), VOCAB - 1)
    tl.store(resolved_ids + row, token, mask=chunk == 0)

    columns = chunk * BLOCK + tl.arange(0, BLOCK)
    inside = columns < HIDDEN
    values = tl.load(table + token.to(tl.int64) * HIDDEN + columns, mask=inside)
    if SCALE != 1:
        values = rounded(values.to(tl.float32) * SCALE, tl.bfloat16)
    tl.store(out + row.to(tl.int64) * HIDDEN + columns, values, mask=inside)


def embed(
    token_ids: torch.Tensor,
    lines: torch.Tensor,
    last_tokens: torch.Tensor,
    table: torch.Tensor,
    out: torch.Tensor,
    resolved_ids: torch.Tensor,
    scale: float = 1.0,
) -> None:
    """Look up the embedding of every row's token, and multiply it by `scale`.

    Inputs: int32 token_ids [rows], where -1 stands for `last_tokens[line]`; int32 lines [rows], read where the token
    is -1; int32 last_tokens [lines]; bfloat16 table [vocab, hidden]. Outputs: bfloat16 out [rows, hidden] and int32
    resolved_ids [rows], the ids used. An id outside the vocabulary is taken to its nearest end: the host validates.
    """
    vocab, hidden = table.shape
    block = min(_BLOCK, triton.next_power_of_2(hidden))
    launch(
        _embed,
        (len(token_ids), triton.cdiv(hidden, block)),
        token_ids,
        lines,
        last_tokens,
        table,
        out,
        resolved_ids,
        VOCAB=vocab,
        HIDDEN=hidden,
        BLOCK=block,
        SCALE=scale,
    )


def embed_reference(
    token_ids: torch.Tensor,
    lines: torch.Tensor,
    last_tokens: torch.Tensor,
    table: torch.Tensor,
    out: torch.Tensor,
    resolved_ids: torch.Tensor,
    scale: float = 1.0,
) -> None:
    """The same in torch."""
    unknown = token_ids < 0
    known = torch.where(unknown, last_tokens[torch.where(unknown, lines, 0).long()], token_ids)
    resolved_ids.copy_(known.clamp(0, len(table) - 1))
    out.copy_(table[resolved_ids.long()].float() * scale)
