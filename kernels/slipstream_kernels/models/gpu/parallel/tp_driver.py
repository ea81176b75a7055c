"""A model shared by several ranks: rank 0 is told what to run, the others repeat it on their parts."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from slipstream_kernels.models.gpu.batch.pass_plan import Int32, PassPlan
from slipstream_kernels.models.gpu.gpu_model import GpuModel
from slipstream_kernels.models.gpu.graph.hidden_state_copies import CopyPlan, no_copies
from slipstream_kernels.models.gpu.graph.pass_handle import PassHandle
from slipstream_kernels.models.gpu.parallel.tp_broadcast import LineChange, PagesChange, StepMessage, ids
from slipstream_kernels.models.gpu.ranks.rank_group import RankGroup

_log = logging.getLogger(__name__)

_STOP = b""


class TpDriverModel(GpuModel):
    """Rank 0's part of a model; every pass it launches, the followers launch too. Calls raise RankError beside."""

    takes_device_trees = False

    def __init__(self, *args: Any, group: RankGroup, **options: Any) -> None:
        """As `GpuModel`; `group` is shared with the followers."""
        super().__init__(*args, group=group, **options)
        self._ranks = group
        self._line_changes: list[LineChange] = []
        self._page_changes: list[PagesChange] = []
        self._pending: tuple[float, PassHandle | None] | None = None

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
        assert adapter < 0, "ranks share no adapters"
        super().set_line(line, packed_params, prompt_ids=prompt_ids, output_ids=output_ids, bias=bias, end_ids=end_ids)
        self._line_changes.append(
            LineChange(
                line,
                packed_params.astype(np.int32),
                ids(prompt_ids),
                ids(output_ids),
                None if bias is None else ids(token for token, _ in bias),
                None if bias is None else np.array([value for _, value in bias], np.float32),
                ids(end_ids),
            )
        )

    def set_pages(self, line: int, start: int, pages: Int32 | Sequence[int]) -> None:
        super().set_pages(line, start, pages)
        self._page_changes.append(PagesChange(line, start, np.array(pages, np.int32)))

    def launch(self, plan: PassPlan, copies: CopyPlan = no_copies) -> PassHandle:
        begun = time.monotonic()
        self._pending = (begun, None)
        ticket = None
        try:
            # Before the pass is queued here: where ops run at once, this one waits for the followers in its midst.
            self._ranks.broadcast(StepMessage(tuple(self._line_changes), tuple(self._page_changes), plan).to_bytes())
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
        self._ranks.broadcast(_STOP)

    def leave(self) -> None:
        """Leave the followers, whatever has become of them. Nothing can be launched afterwards."""
        self._ranks.close()


def follow(model: GpuModel, group: RankGroup) -> None:
    """Repeat what rank 0 runs until it stops the followers. Raises RankError where rank 0 ends otherwise."""
    while content := group.broadcast(None):
        message = StepMessage.from_bytes(content)
        for line in message.lines:
            bias = None
            if line.bias_ids is not None and line.bias_values is not None:
                bias = list(zip(line.bias_ids.tolist(), line.bias_values.tolist(), strict=True))
            model.set_line(
                line.line,
                line.packed_params,
                prompt_ids=_list(line.prompt_ids),
                output_ids=_list(line.output_ids),
                bias=bias,
                end_ids=_list(line.end_ids),
            )
        for change in message.pages:
            model.set_pages(change.line, change.start, change.pages)
        try:
            model.launch(replace(message.plan, keep_logits=False))
        except ValueError as error:
            _log.warning("a pass was refused, by rank 0 too: %s", error)


def _list(values: Int32 | None) -> list[int] | None:
    return None if values is None else values.tolist()
