"""The target's pass that a round of drafting follows on the device, before the host knows how it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from slipstream_kernels.models.gpu.draft.networks.draft_ops import DraftOps
from slipstream_kernels.models.gpu.draft.round.round_plan import RoundArrays, RoundItem
from slipstream_kernels.token_tree import MAX_ROWS

_MOST_PLACE = 2**31 - 1


@dataclass(frozen=True, slots=True)
class TargetPass:
    """`asked`: for each item, its row of `results` and its first state's place in `source`; see `settle_text`."""

    asked: Sequence[tuple[int, int]]
    results: torch.Tensor
    source: torch.Tensor

    def check(self, items: Sequence[RoundItem], features: int, device: torch.device) -> None:
        """Raises ValueError where items cannot follow. features: numbers of a state. device: the round's."""
        for tensor in (self.results, self.source):
            if tensor.device != device:
                raise ValueError(f"a round on {device} follows a pass on {tensor.device}")
        if len(self.asked) != len(items):
            raise ValueError(f"{len(items)} items follow a pass in {len(self.asked)} places")
        results = len(self.results)
        end = min(len(self.source) if features else _MOST_PLACE, _MOST_PLACE)
        for item, (row, place) in zip(items, self.asked, strict=True):
            rows = len(item.token_ids)
            if not 1 <= rows <= MAX_ROWS:
                raise ValueError(f"{rows} rows of text follow a pass, must be from 1 to {MAX_ROWS}")
            if not 0 <= row < results:
                raise ValueError(f"row {row} of the results of a pass, which has {results}")
            if not 0 <= place <= end - rows * features:
                raise ValueError(f"{rows} states of {features} numbers do not lie from {place} on, below {end}")

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
