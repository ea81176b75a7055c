"""A model shared by several ranks, of which rank 0 is told what to run."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from slipstream_kernels.models.checkpoint.adapter.lora_adapter import LoraAdapter
from slipstream_kernels.models.gpu.batch.pass_plan import Int32, PassPlan
from slipstream_kernels.models.gpu.gpu_model import GpuModel
from slipstream_kernels.models.gpu.graph.hidden_state_copies import CopyPlan, no_copies
from slipstream_kernels.models.gpu.graph.pass_handle import PassHandle
from slipstream_kernels.models.gpu.parallel.adapter_broadcast import AdapterMessage
from slipstream_kernels.models.gpu.parallel.tp_broadcast import LineChange, PagesChange, StepMessage, ids
from slipstream_kernels.models.gpu.ranks.rank_group import RankGroup

STOP = b""
"""The message that ends followers."""


class TpDriverModel(GpuModel):
    """Rank 0's part of a model; every pass it launches, the followers launch too. Calls raise RankError beside."""

    takes_device_trees = False
    decides_again = False  # followers have no masks

    def __init__(self, *args: Any, group: RankGroup, **options: Any) -> None:
        """As `GpuModel`; `group` is shared with the followers."""
        super().__init__(*args, group=group, **options)
        self._ranks = group
        self._line_changes: list[LineChange] = []
        self._page_changes: list[PagesChange] = []
        self._pending: tuple[float, PassHandle | None] | None = None
        self._launched = 0
        self._writing = threading.Lock()

    def set_line(
        self,
        line: int,
        packed_params: Int32,
        *,
        prompt_ids: Sequence[int] | None = None,
        output_ids: Sequence[int] | None = None,
        bias: Sequence[tuple[int, float]] | None = None,
        end_ids: Sequence[int] | None = None,
        adapter: int = -1,
    ) -> None:
        super().set_line(
            line,
            packed_params,
            prompt_ids=prompt_ids,
            output_ids=output_ids,
            bias=bias,
            end_ids=end_ids,
            adapter=adapter,
        )
        self._line_changes.append(
            LineChange(
                line,
                packed_params.astype(np.int32),
                ids(prompt_ids),
                ids(output_ids),
                None if bias is None else ids(token for token, _ in bias),
                None if bias is None else np.array([value for _, value in bias], np.float32),
                ids(end_ids),
                adapter,
            )
        )

    def write_adapter(self, slot: int, adapter: LoraAdapter) -> None:
        """Fill a slot on every rank; see `GpuAdapters.write`. Followers take it beside passes, one at a time."""
        super().write_adapter(slot, adapter)
        with self._writing:
            self._ranks.apart.broadcast(AdapterMessage(slot, self._launched, adapter).to_bytes())
            self._ranks.apart.wait_for_all()

    def set_pages(self, line: int, start: int, pages: Int32 | Sequence[int]) -> None:
        super().set_pages(line, start, pages)
        self._page_changes.append(PagesChange(line, start, np.array(pages, np.int32)))

    def launch(self, plan: PassPlan, copies: CopyPlan = no_copies, *, again: bool = False) -> PassHandle:
        assert not again, "followers have no masks"
        begun = time.monotonic()
        self._pending = (begun, None)
        ticket = None
        try:
            # Before the pass is queued here: where ops run at once, this one waits for the followers in its midst.
            self._ranks.broadcast(StepMessage(tuple(self._line_changes), tuple(self._page_changes), plan).to_bytes())
            self._launched += 1
            self._line_changes.clear()
            self._page_changes.clear()
            ticket = super().launch(plan, copies)
        finally:
            self._pending = None if ticket is None else (begun, ticket)
        return ticket

    def pending_seconds(self) -> float:
        """How long the last pass has been under way, from its launch on; 0 if none is. May be called by any thread."""
        pending = self._pending
        if pending is None:
            return 0.0
        begun, ticket = pending
        return 0.0 if ticket is not None and ticket.done() else time.monotonic() - begun

    def stop_followers(self) -> None:
        """Let the followers end. Nothing can be launched afterwards."""
        self._ranks.broadcast(STOP)
        if self.limits.max_adapters:
            with self._writing:
                self._ranks.apart.broadcast(STOP)

    def leave(self) -> None:
        """Leave the followers, whatever has become of them. Nothing can be launched afterwards."""
        self._ranks.close()
