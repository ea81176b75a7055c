"""What a stage of an MLP speculator leaves (arXiv 2404.19124, section 3): GELU of a normalised sum, a row at a time."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.gather_norm import row_tile
from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.rounding import rounded

_ROOT_HALF = tl.constexpr(0.5**0.5)


@triton.jit
def _speculator_state(
    sums: tl.tensor,
    sum_rows: tl.tensor,
    token_ids: tl.tensor,
    table: tl.tensor,
    gain: tl.tensor,
    shift: tl.tensor,
    out: tl.tensor,
    weight: float,
    eps: float,
    VOCAB: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    CHOSEN: tl.constexpr,
) -> None:
    """One row a program."""
    release_next()
    columns = tl.arange(0, TILE)
    inside = columns < WIDTH
    scales = tl.load(gain + columns, mask=inside, other=0.0).to(tl.float32)
    shifts = tl.load(shift + columns, mask=inside, other=0.0).to(tl.float32)
    wait_for_previous()
    row = tl.program_id(0)
    source = row
    if CHOSEN:
        source = tl.maximum(tl.load(sum_rows + row), 0)
    token = tl.minimum(tl.maximum(tl.load(token_ids + row), 0), VOCAB - 1)
    embedded = tl.load(table + token.to(tl.int64) * WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
    x = tl.load(sums + source.to(tl.int64) * WIDTH + columns, mask=inside, other=0.0) + weight * embedded
    x = x * tl.rsqrt(tl.sum(x * x) / WIDTH + eps) * scales + shifts
    state = 0.5 * x * (1.0 + tl.erf(x * _ROOT_HALF))
    tl.store(out + row.to(tl.int64) * WIDTH + columns, rounded(state, out.dtype.element_ty), mask=inside)


def speculator_state(
    sums: torch.Tensor,
    sum_rows: torch.Tensor | None,
    token_ids: torch.Tensor,
    table: torch.Tensor,
    weight: float,
    gain: torch.Tensor,
    shift: torch.Tensor,
    eps: float,
    out: torch.Tensor,
) -> None:
    """out[i] = GELU(norm(sums[sum_rows[i]] + weight * embedding of token_ids[i]) * gain + shift), rounded once.

    norm(x) = x / sqrt(mean(x^2) + eps), the exact GELU, all in float32. float32 sums [n, width]; bfloat16 table [vocab,
    width], gain and shift [width], out [rows, width], all contiguous. int32 token_ids and sum_rows [rows]; without
    sum_rows it is row i. A token outside the vocabulary is taken to its nearest end, a row of -1 to the first. `gain`
    and `shift` are not the work of kernels of the same pass.
    """
    vocab, width = table.shape
    assert all(each.is_contiguous() for each in (sums, table, gain, shift, out))
    assert sums.shape[1] == out.shape[1] == width
    tile, warps = row_tile(width)
    launch(
        _speculator_state,
        (len(out),),
        sums,
        token_ids if sum_rows is None else sum_rows,
        token_ids,
        table,
        gain,
        shift,
        out,
        weight,
        eps,
        warps=warps,
        VOCAB=vocab,
        WIDTH=width,
        TILE=tile,
        CHOSEN=sum_rows is not None,
    )


def speculator_state_reference(
    sums: torch.Tensor,
    sum_rows: torch.Tensor | None,
    token_ids: torch.Tensor,
    table: torch.Tensor,
    weight: float,
    gain: torch.Tensor,
    shift: torch.Tensor,
    eps: float,
    out: torch.Tensor,
) -> None:
    """The same in torch."""
    taken = sums[: len(out)] if sum_rows is None else sums[sum_rows.long().clamp(min=0)]
    x = taken + weight * table[token_ids.long().clamp(0, len(table) - 1)].float()
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * gain.float() + shift.float()
    out.copy_(torch.nn.functional.gelu(x))
