"""Which rows of logits are sampled under which masks, where only some are."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu import sampling_table as table

_FIELDS, _FLAGS, _AWAITS_MASKS = (tl.constexpr(v) for v in (table.FIELDS, table.FLAGS, table.AWAITS_MASKS))


@triton.jit
def chosen_row(
    index: tl.tensor, logit_rows: tl.tensor, chosen: tl.tensor, MASKED: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """The place of a program's row among the logits, and its row of the pass, below 0 where there is none."""
    if MASKED:
        place = tl.load(chosen + index)
        row = tl.load(logit_rows + place, mask=place >= 0, other=-1)
    else:
        place = index
        row = tl.load(logit_rows + index)
    return place, row


@triton.jit
def is_sampled(parameters: tl.tensor, line: tl.tensor, MASKED: tl.constexpr) -> tl.tensor:
    """Whether a request's rows are sampled now: those that await masks are with these alone."""
    flags = tl.load(parameters + line.to(tl.int64) * _FIELDS + _FLAGS)
    return MASKED | ((flags & _AWAITS_MASKS) == 0)


@triton.jit
def mask_row(index: tl.tensor, masks: tl.tensor, vocab_size: int) -> tl.tensor:
    """A pointer to a program's mask; to nothing in particular where there are none."""
    return masks + index.to(tl.int64) * ((vocab_size + 31) // 32)


def masked_arguments(
    logit_rows: torch.Tensor, chosen: torch.Tensor | None, masks: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Arguments `chosen` and `masks` of kernels that are MASKED where there are masks, and read neither else.

    Raises ValueError for one without the other.
    """
    if (chosen is None) != (masks is None) or (chosen is not None and masks is not None and len(chosen) != len(masks)):
        raise ValueError("each chosen row has a mask")
    return (logit_rows, logit_rows) if chosen is None or masks is None else (chosen, masks)


def chosen_rows_reference(logit_rows: torch.Tensor, chosen: torch.Tensor | None) -> Iterator[tuple[int, int, int]]:
    """Of each program its index, and what `chosen_row` returns."""
    places = range(len(logit_rows)) if chosen is None else chosen.tolist()
    rows = logit_rows.tolist()
    for index, place in enumerate(places):
        yield index, place, rows[place] if place >= 0 else -1
