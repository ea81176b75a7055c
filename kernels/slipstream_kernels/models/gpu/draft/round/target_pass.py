"""The target's pass that a round of drafting follows on the device, before the host knows how it ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from slipstream_kernels.models.gpu.draft.networks.draft_ops import DraftOps
from slipstream_kernels.models.gpu.draft.round.plan_rows import ROWS, Int32
from slipstream_kernels.models.gpu.draft.round.round_plan import Int64, RoundArrays
from slipstream_kernels.token_tree import MAX_ROWS

_MOST_PLACE = 2**31 - 1


@dataclass(frozen=True, slots=True)
class TargetPass:
    """`asked`, int64 [items, 2]: each item's row of `results`, its first state's place in `source`.

    See `settle_text`.
    """

    asked: Int64
    results: torch.Tensor
    source: torch.Tensor

    def check(self, table: Int32, features: int, device: torch.device) -> None:
        """Raises ValueError where items cannot follow. features: numbers of a state. device: the round's.

        table: as of `item_table`.
        """
        for tensor in (self.results, self.source):
            if tensor.device != device:
                raise ValueError(f"a round on {device} follows a pass on {tensor.device}")
        if len(self.asked) != len(table):
            raise ValueError(f"{len(table)} items follow a pass in {len(self.asked)} places")
        results = len(self.results)
        end = min(len(self.source) if features else _MOST_PLACE, _MOST_PLACE)
        lengths, rows, places = table[:, ROWS], self.asked[:, 0], self.asked[:, 1]
        if (wrong := (lengths < 1) | (lengths > MAX_ROWS)).any():
            raise ValueError(f"{lengths[wrong][0]} rows of text follow a pass, must be from 1 to {MAX_ROWS}")
        if (wrong := (rows < 0) | (rows >= results)).any():
            raise ValueError(f"row {rows[wrong][0]} of the results of a pass, which has {results}")
        if (wrong := (places < 0) | (places > end - lengths.astype(np.int64) * features)).any():
            count, place = lengths[wrong][0], places[wrong][0]
            raise ValueError(f"{count} states of {features} numbers do not lie from {place} on, below {end}")

    def settle(
        self,
        ops: DraftOps,
        plan: RoundArrays[torch.Tensor],
        segment_rows: int,
        width: int,
        features: torch.Tensor | None,
        read: torch.cuda.Event | None,
    ) -> None:
        """Queue what makes a round of what was laid out for the most rows that may be accepted.

        features: bfloat16 [text rows, F], get the states. read: recorded once results and states are read.
        """
        if features is not None:
            ops.take_states(plan.follows, self.results, self.source, features)
        ops.settle_text(
            plan.follows,
            self.results,
            segment_rows,
            width,
            plan.token_ids,
            plan.write_slots,
            plan.prefix_lengths,
            plan.parents,
            plan.root_rows,
            plan.decode_rows,
            plan.segments,
            plan.last_rows,
            plan.root_positions,
            plan.node_positions,
            plan.node_choices,
            plan.node_prefix_lengths,
            plan.node_segments,
        )
        if read is not None:
            read.record()
        ops.layers.count_splits(plan.segments, plan.item_offsets)
        if len(plan.node_positions):
            ops.layers.count_splits(plan.node_segments, plan.node_item_offsets)
