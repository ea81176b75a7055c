"""Pages of several requests laid end to end, as FlashInfer reads them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous

_BLOCK = 1024


@triton.jit
def _page_indices(
    page_table: tl.tensor,
    lines: tl.tensor,
    starts: tl.tensor,
    indices: tl.tensor,
    line_stride: int,
    width: int,
    BLOCK: tl.constexpr,
) -> None:
    release_next()
    wait_for_previous()
    item = tl.program_id(0)
    line = tl.maximum(tl.load(lines + item), 0).to(tl.int64)
    start = tl.load(starts + item)
    pages = tl.load(starts + item + 1) - start
    for first in range(0, pages, BLOCK):
        places = first + tl.arange(0, BLOCK)
        inside = places < pages
        pages_read = tl.load(page_table + line * line_stride + places, mask=inside & (places < width), other=0)
        tl.store(indices + start + places, pages_read, mask=inside)


def page_indices(page_table: torch.Tensor, lines: torch.Tensor, starts: torch.Tensor, indices: torch.Tensor) -> None:
    """indices[starts[i] + j] = page_table[lines[i], j] for starts[i + 1] - starts[i] pages of each item i.

    All int32: page_table [lines, pages], lines [items] (-1 reads line 0), starts [items + 1] ascending, indices at
    least starts[-1]. Beyond the table's width the page is 0.
    """
    lines_apart, width = page_table.stride(0), page_table.shape[1]
    launch(_page_indices, (len(starts) - 1,), page_table, lines, starts, indices, lines_apart, width, BLOCK=_BLOCK)


def page_indices_reference(
    page_table: torch.Tensor, lines: torch.Tensor, starts: torch.Tensor, indices: torch.Tensor
) -> None:
    """The same in torch."""
    bounds = starts.tolist()
    for item, line in enumerate(lines[: len(bounds) - 1].tolist()):
        start, end = bounds[item], bounds[item + 1]
        pages = page_table[max(line, 0), : end - start]
        indices[start:end] = 0
        indices[start : start + len(pages)] = pages
