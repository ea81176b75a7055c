"""Decides items of the last pass again, some of whose rows are sampled under masks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from slipstream_kernels.models.gpu.batch.buckets import Bucket
from slipstream_kernels.models.gpu.batch.device_plan import PlanLayout
from slipstream_kernels.models.gpu.batch.limits import GpuLimits
from slipstream_kernels.models.gpu.batch.pass_plan import Int32
from slipstream_kernels.models.gpu.forward.gpu_forward import GpuForward
from slipstream_kernels.models.gpu.forward.masked_sampling import MaskedRows, MaskRoom
from slipstream_kernels.models.gpu.graph.pass_buffers import BufferPool

_MET_ROWS = (1, 5, 33)
"""Numbers of rows that are sampled by kernels of their own."""


class MaskedDecision:
    """What is queued behind a pass reads its plan and its logits: nothing may be launched in between.

    Until then the pass has decided these items as if they had no masks. A decision replaces all that the first one has
    left behind, but for output counts: whoever has lines with penalties sets these again in between.
    """

    def __init__(
        self,
        forward: GpuForward,
        pool: BufferPool,
        layout: Callable[[Bucket], PlanLayout],
        plan: torch.Tensor,
        limits: GpuLimits,
        vocab_size: int,
    ) -> None:
        """`plan` is the device's, int32 [words]."""
        self._forward = forward
        self._pool = pool
        self._layout = layout
        self._plan = plan
        self._most = limits.max_decode_rows
        self.room = MaskRoom(limits, vocab_size, plan.device)

    def queue(self, bucket: Bucket, deciding: Int32, rows: Int32, begun: torch.cuda.Event | None = None) -> None:
        """Sample `rows` int32 [n], places among the pass's logits, under the first n masks of the room, and walk again.

        Of `deciding`, the pass's own int32 [items, 4], those items are decided again of which any row is among them.
        `begun` comes once pass and masks are there.
        """
        again = deciding.copy()
        last = deciding[:, 0] + deciding[:, 1]
        chosen = rows[rows >= 0]
        items = np.searchsorted(last, chosen, side="right")
        again[:, 1] = -1
        again[items, 1] = deciding[items, 1]
        masks = self.room.send(rows, again)
        if begun is not None:
            begun.record()
        self._forward.decide_again(bucket, self._layout(bucket).views(self._plan), masks)

    def sample(self, bucket: Bucket, wanted: MaskedRows) -> list[int]:
        """Return the tokens of rows under masks, -1 as of the op; nothing else changes. Waits for them."""
        device = self._plan.device
        chosen = torch.from_numpy(wanted.rows).to(device)
        masks = torch.from_numpy(wanted.masks.view(np.int32)).to(device)
        sampled = torch.empty_like(self._pool.of(bucket).sampled)
        self._forward.sample(bucket, self._layout(bucket).views(self._plan), sampled, chosen, masks)
        return [int(token) for token in sampled[chosen.long()].tolist()]

    def meet(self, bucket: Bucket) -> None:
        """Launch the kernels, so that no request waits for their being compiled; those of walks are the pass's own."""
        for rows in _MET_ROWS:
            self.queue(bucket, np.zeros((0, 4), np.int32), np.full(min(rows, self._most), -1, np.int32))
