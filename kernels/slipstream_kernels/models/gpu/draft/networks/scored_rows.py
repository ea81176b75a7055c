"""Which of a draft's scoring rows a target has tokens for."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def limited_rows(
    rows: Sequence[torch.Tensor], ids: torch.Tensor | None, size: int
) -> tuple[list[torch.Tensor], torch.Tensor | None]:
    """Rows and ids of the entries whose id is below `size`; what shares a tensor goes on to share one.

    rows: [entries, width] each. ids: int32 [entries], the target's id of each entry, None where both are the same.
    """
    if ids is None:
        return [each[:size] for each in rows], None
    kept = ids < size
    if bool(kept.all()):
        return list(rows), ids
    chosen = {each.data_ptr(): each[kept] for each in rows}
    return [chosen[each.data_ptr()] for each in rows], ids[kept]
