"""Runs in front of a pass with choices: the device settles its rows by what the pass before it has decided."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from slipstream_kernels.models.gpu.batch.buckets import Bucket
from slipstream_kernels.models.gpu.batch.device_plan import PlanLayout
from slipstream_kernels.models.gpu.batch.outcome_plan import OutcomeArrays, may_select
from slipstream_kernels.models.gpu.forward.gpu_forward import GpuForward
from slipstream_kernels.models.gpu.graph.graph_runner import GraphRunner
from slipstream_kernels.ops.gpu.draft_trees import TREE_WIDTH


class OutcomeSelector:
    """Has small graphs of its own, so that passes without choices do not pay for it."""

    def __init__(self, forward: GpuForward, layout: Callable[[Bucket], PlanLayout], plan: torch.Tensor) -> None:
        """`plan` is the device's, int32 [words]."""
        self._forward = forward
        self._layout = layout
        self._plan = plan
        self._graphs = GraphRunner[Bucket](self._choose)
        self._choices: dict[Bucket, OutcomeArrays[torch.Tensor]] = {}

    def meet(self, buckets: Sequence[Bucket]) -> None:
        """As `GraphRunner.meet`, of what `capture` captures, and of what no graph has."""
        if able := _able(buckets):
            self._graphs.meet(able)
            self._hand_nothing(able[0])

    def capture(self, buckets: Sequence[Bucket], prepare: Callable[[Bucket], None], *, progress: bool) -> None:
        """As `GraphRunner.capture`, of those buckets whose passes may have choices, and have no prefill."""
        able = _able(buckets)
        self._graphs.capture(able, prepare, progress=progress)
        if able:
            prepare(able[0])
            self._hand_nothing(able[0])

    def hand(self, bucket: Bucket, trees: torch.Tensor) -> None:
        """Queue, between the copy of a plan and the choice, what brings the trees that are drafted on the device."""
        bucket = bucket.without_states
        choices = self._choices.get(bucket)
        if choices is None:
            layout = self._layout(bucket).choices
            assert layout is not None
            choices = self._choices[bucket] = layout.views(self._plan)
        self._forward.hand(choices, trees)

    def run(self, bucket: Bucket) -> None:
        """Queue the choice, between the plan's way to the device and the pass."""
        self._graphs.run(bucket.without_states)

    def _hand_nothing(self, bucket: Bucket) -> None:
        """Launch `hand`, which no graph has: of padding alone nothing is read."""
        self.hand(bucket, torch.zeros(1, TREE_WIDTH, dtype=torch.int32, device=self._plan.device))

    def _choose(self, bucket: Bucket) -> None:
        layout = self._layout(bucket)
        assert layout.choices is not None
        choices = layout.choices.views(self._plan)
        self._forward.choose(layout.views(self._plan), choices, layout.choices.segment_rows)


def _able(buckets: Sequence[Bucket]) -> list[Bucket]:
    """Those whose passes may have choices, and have no prefill."""
    return [bucket for bucket in buckets if may_select(bucket) and not (bucket.has_prefill or bucket.adapters)]
