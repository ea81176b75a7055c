"""A device whose kernels do nothing: the target and an EAGLE-3 head as ever, but passes and rounds are made up.

A round drafts a chain of the same tokens for every request, as long as its limits allow, and a pass accepts a part of
that, drawn with a seed. Pages, plans, tables and copies are laid out as for a GPU; a pass takes `seconds` of nobody's
processor. What CUDA's own calls take is not in it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from typing import Any, Final
from unittest import mock

import numpy as np
import torch

from benchmarks.lib.repository import DEMO_HEAD, DEMO_MODEL
from benchmarks.local_engine.local_loop import EngineConfig
from benchmarks.local_engine.measured_model import limits_of
from draft_service.heads.loading import load_eagle
from draft_service.proposers.eagle import gpu as gpu_eagle
from draft_service.proposers.eagle.base import EagleConfig
from draft_service.proposers.eagle.gpu import GpuEagleProposer
from draft_service.verify_link import device_queue as drafters_queue
from draft_service.verify_link.hidden_state_ring import HiddenStateRing
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.gpu.batch.buckets import Bucket
from slipstream_kernels.models.gpu.batch.pass_plan import PassPlan
from slipstream_kernels.models.gpu.draft.networks import draft_ops
from slipstream_kernels.models.gpu.draft.networks.draft_ops import DraftOps
from slipstream_kernels.models.gpu.draft.round.draft_round import DraftRound
from slipstream_kernels.models.gpu.draft.round.round_buckets import RoundBucket
from slipstream_kernels.models.gpu.forward.ops_namespace import Ops
from slipstream_kernels.models.gpu.forward.weights import GpuWeights
from slipstream_kernels.models.gpu.gpu_model import GpuModel, PassHandle
from slipstream_kernels.models.gpu.graph.hidden_state_copies import CopyPlan, no_copies
from slipstream_kernels.models.gpu.graph.pinned_buffers import PinnedBuffer
from slipstream_kernels.models.gpu.outcome_selector import OutcomeSelector
from slipstream_kernels.ops.gpu import device_queue as queue_ops
from slipstream_kernels.ops.gpu.draft_trees import COUNT, MOST_NODES, PARENTS, TREE_WIDTH
from slipstream_kernels.ops.gpu.state_rows import ENTRY
from slipstream_kernels.ops.gpu.tree_walk import RESULT_WIDTH
from slipstream_kernels.token_tree import MAX_ROWS
from verify_service.draft_link import device_queue as verifys_queue

PROPOSER = "eagle3"
DEVICE: Final = "cpu:0"
"""As services name it, for whom `cpu` is no device that two share."""
BONUS: Final = 9
"""The token that ends every step; drafted ones follow it."""
_NODES, _TOKENS = 2, 2 + MAX_ROWS
"""Columns of a pass's results at which nodes and tokens begin."""
_LOOK_SECONDS = 2e-5


class Clock:
    """An event of a device that works for so many seconds after each launch. Implements what passes ask of one."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until = 0.0

    def record(self, *_: object) -> None:
        """Something is launched."""
        self._until = time.perf_counter() + self._seconds

    def query(self) -> bool:
        """Whether it is done."""
        return time.perf_counter() >= self._until

    def synchronize(self) -> None:
        """Sleep until it is."""
        while (left := self._until - time.perf_counter()) > 0:
            time.sleep(max(left, _LOOK_SECONDS))


class SilentModel(GpuModel):
    """Accepts of each chain as many nodes as are drawn, `mean_accepted` of 3 on average."""

    last_plan: PassPlan | None = None
    pass_seconds = 0.0
    """How long a pass takes; 0 for none at all."""
    mean_accepted = 1.8

    def draw(self, seed: int = 0) -> None:
        """Draw what passes accept."""
        drawn = np.random.default_rng(seed).binomial(3, self.mean_accepted / 3, (1024, self.limits.max_running))
        self._drawn = drawn.astype(np.int32)
        self._passes = 0

    def pass_costs(self) -> list[tuple[int, int, float]]:
        return [(1, 1, 4e-3), (1, 64, 4.4e-3), (1, 256, 9e-3)]

    def launch(self, plan: PassPlan, copies: CopyPlan = no_copies, *, again: bool = False) -> PassHandle:
        self.last_plan = plan
        return super().launch(plan, copies, again=again)

    def _receive(
        self, bucket: Bucket, plan: PassPlan, buffer: PinnedBuffer, copies: CopyPlan, *, again: bool
    ) -> PassHandle:
        if self.pass_seconds and buffer.event is None:
            buffer.reserve_state_rows(3 * self.limits.max_rows, ENTRY)
            buffer.event = Clock(self.pass_seconds)  # type: ignore[assignment]  # it takes the place of CUDA's
        return super()._receive(bucket, plan, buffer, copies, again=again)

    def _run(self, bucket: Bucket, layers: int | None = None) -> None:
        plan = self.last_plan
        if plan is None or not len(plan.deciding):
            return
        count = len(plan.deciding)
        result = self._pool.of(bucket).result[:count].numpy()
        accepted = np.minimum(self._drawn[self._passes % len(self._drawn), :count], plan.deciding[:, 1] - 1)
        self._passes += 1
        result[:] = DECIDED[accepted]


class SilentRound(DraftRound):
    """Drafts chains of the tokens behind `BONUS`."""

    def _run(self, bucket: RoundBucket) -> None:
        if not bucket.levels:
            return
        limits = self._laid_out(bucket)[1].limits.numpy()
        result = self._buffers.trees(bucket.sessions).trees.result.numpy()
        result[: len(limits)] = CHAIN
        result[: len(limits), COUNT] = np.minimum(limits[:, 0], limits[:, 1])


def _chain() -> np.ndarray:
    """A tree of `DraftTrees.result`, int32 [TREE_WIDTH], without its number of nodes."""
    words = np.zeros(TREE_WIDTH, np.int32)
    words[:MOST_NODES] = BONUS + 1 + np.arange(MOST_NODES)
    words[PARENTS : PARENTS + MOST_NODES] = np.arange(MOST_NODES) - 1
    return words


def _decided() -> np.ndarray:
    """What passes decide where they accept 0 nodes of a chain, 1, ..: int32 [MAX_ROWS, RESULT_WIDTH]."""
    numbers = np.arange(MAX_ROWS, dtype=np.int32)
    decided = np.zeros((MAX_ROWS, RESULT_WIDTH), np.int32)
    decided[:, 0], decided[:, _NODES:_TOKENS], decided[:, _TOKENS:] = numbers, numbers, BONUS + 1 + numbers
    decided[numbers, _TOKENS + numbers] = BONUS
    return decided


CHAIN: Final = _chain()
DECIDED: Final = _decided()


def silent_model(config: EngineConfig, boundaries: int) -> SilentModel:
    """The demo model on this device."""
    weights = GpuWeights.load(DEMO_MODEL, ModelConfig.from_folder(DEMO_MODEL), "cpu", progress=False)
    model = SilentModel.from_weights(weights, limits_of(config, boundaries), ops=silent_ops())
    model.draw()
    return model


def silent_head(requests: int) -> GpuEagleProposer:
    """The demo model's EAGLE-3 head, as it drafts on a GPU. To be made within `silence`."""
    config = EagleConfig(
        max_depth=5,
        top_k=1,
        max_nodes=6,
        max_tokens=4096 * requests,
        max_context=4096,
        max_sessions=max(8, 2 * requests),
    )
    head = GpuEagleProposer(PROPOSER, load_eagle(DEMO_HEAD, DEMO_MODEL), config, "cpu")
    head.state_device = DEVICE
    return head


@contextmanager
def silence() -> Iterator[None]:
    """Within it heads draft, and device queues hand over, without any kernel's work."""
    nothing = _nothing
    with ExitStack() as stack:
        enter = stack.enter_context
        enter(mock.patch.object(gpu_eagle, "DraftRound", SilentRound))
        enter(mock.patch.object(draft_ops, "twins", _silent_draft_ops))
        enter(mock.patch.object(HiddenStateRing, "_copy", _uncopied))
        enter(mock.patch.object(OutcomeSelector, "_choose", nothing))
        enter(mock.patch.object(verifys_queue, "_TAKES", ((nothing, _take_trees),)))
        enter(mock.patch.object(drafters_queue, "_TAKES", ((nothing, _take_outcomes),)))
        enter(mock.patch.object(queue_ops, "publish_outcomes_reference", nothing))
        enter(mock.patch.object(queue_ops, "publish_trees_reference", nothing))
        yield


def _uncopied(ring: HiddenStateRing, start: int, end: int) -> torch.Tensor:
    """In place of a copy that a GPU makes."""
    place = start // 2 % len(ring.numbers)
    return ring.numbers[place : place + (end - start) // 2]


def _take_trees(*operands: Any) -> None:
    """As `ops.take_trees`, of chains that came in time."""
    table, taken = operands[2].numpy(), operands[4].numpy()
    taken[:] = CHAIN
    taken[:, COUNT] = np.minimum(table[:, queue_ops.NODES], table[:, queue_ops.DEPTH])
    taken[:, queue_ops.STATE] = queue_ops.TAKEN


def _take_outcomes(*operands: Any) -> None:
    """As `ops.take_outcomes`, of a pass that came in time."""
    operands[5].fill_(1)


def silent_ops() -> Ops:
    """A target's, of which none does anything."""
    ops: Ops = _silent(Ops)
    return ops


def _silent(kind: type) -> Any:
    return kind(**{field.name: _nothing for field in fields(kind)})


def _silent_draft_ops() -> DraftOps:
    ops = {field.name: _nothing for field in fields(DraftOps)}
    return DraftOps(**(ops | {"layers": _silent(Ops)}))


def _nothing(*_: object, **__: object) -> None:
    return None
