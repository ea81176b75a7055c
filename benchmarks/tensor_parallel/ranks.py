"""A model of large shapes in one process or shared by several: what each rank makes, and which weights follow which.

    python -m benchmarks.tensor_parallel.ranks

is ranks 1 and up; they are started by rank 0, as slipstream_kernels.models.gpu.parallel.tp_worker_process says.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.inflate.quantised import QuantisedTensors
from benchmarks.inflate.shape import Shape
from benchmarks.inflate.shape_arguments import format_of, shape_of
from benchmarks.inflate.tensors import TensorSource, source_of
from benchmarks.local_engine.local_loop import EngineConfig
from benchmarks.local_engine.measured_model import HashedModel, limits_of, start_model
from slipstream_kernels.models.checkpoint.quantisation.round_to_nearest import RoundedFormat
from slipstream_kernels.models.gpu.forward.weights import GpuWeights
from slipstream_kernels.models.gpu.gpu_model import GpuModel
from slipstream_kernels.models.gpu.parallel.tp_driver import TpDriverModel
from slipstream_kernels.models.gpu.parallel.tp_follower import follow
from slipstream_kernels.models.gpu.parallel.tp_worker_process import (
    TpWorkerProcesses,
    TpWorkerTask,
    run_worker,
    start_ranks,
)
from slipstream_kernels.models.gpu.ranks.rank_group import RankGroup

KINDS = ("random", "inflated")
"""Weights in the order in which they are served, each overwriting those before it."""


@dataclass(frozen=True, slots=True)
class Weights:
    """What every rank makes of a small model's folder. form: to which linear layers are rounded."""

    folder: Path
    shape: Shape
    form: RoundedFormat | None = None

    @property
    def kinds(self) -> tuple[str, ...]:
        """Of `KINDS`, those that there are: packed weights are not overwritten, and some shapes have random ones."""
        return KINDS[:1] if self.shape.family or self.form is not None else KINDS

    def source(self, kind: str, device: torch.device) -> TensorSource | QuantisedTensors:
        """The tensors of a kind, made on a device."""
        source = source_of(kind, self.folder, self.shape, device=device)
        return source if self.form is None else QuantisedTensors(source, self.form)

    def to_json(self) -> str:
        """All but the folder."""
        return json.dumps({"shape": asdict(self.shape), "form": None if self.form is None else asdict(self.form)})

    @classmethod
    def from_json(cls, folder: Path, text: str) -> Weights:
        said = json.loads(text)
        form = None if said["form"] is None else RoundedFormat(**said["form"])
        return cls(folder, Shape(**said["shape"]), form)


class SharedModel(HashedModel, TpDriverModel):
    """Rank 0's part of a shared model, with a hash of each row of logits in the place of logprobs."""


class RankedModel:
    """A model of weights of the first kind, ready for loops of at most `config`, and the other ranks' processes."""

    def __init__(self, options: argparse.Namespace, size: int, config: EngineConfig) -> None:
        self._made = made = Weights(options.model, shape_of(options), format_of(options))
        self.kinds = made.kinds
        self._followers: TpWorkerProcesses | None = None
        self._shared: SharedModel | None = None
        if size == 1:
            device = torch.device(options.device)
            self._weights = _weights(made, device, 0, 1)
            model = start_model(self._weights, config, mode="exact", hashed=True)
            assert isinstance(model, HashedModel)
            self.model = model
            return
        task = TpWorkerTask(
            str(made.folder.resolve()),
            options.device,
            "exact",
            limits_of(config),
            options=made.to_json(),
        )

        def lead(device: torch.device, group: RankGroup) -> SharedModel:
            self._group = group
            self._weights = _weights(made, device, 0, size)
            return SharedModel.from_weights(self._weights, task.limits, group=group, progress=True)

        self._shared, self._followers = start_ranks(task, size, lead, module="benchmarks.tensor_parallel.ranks")
        self.model = self._shared

    def next_weights(self, kind: str) -> None:
        """Go on with the next kind, on every rank. No loop may run."""
        if self._shared is not None:
            self._shared.stop_followers()
        _refill(self.model, self._weights, self._made, kind)
        if self._shared is not None:
            self._group.wait_for_all()

    def close(self) -> None:
        """End the other ranks, after the last kind of weights."""
        if self._shared is not None and self._followers is not None:
            self._shared.stop_followers()
            self._followers.stop()
            self._shared.leave()


def _weights(made: Weights, device: torch.device, rank: int, size: int) -> GpuWeights:
    source = made.source(KINDS[0], device)
    return GpuWeights.from_tensors(source.config, source.tensors(), device, rank=rank, size=size, progress=rank == 0)


def _refill(model: GpuModel, weights: GpuWeights, made: Weights, kind: str) -> None:
    model.wait()
    device = weights.embedding.device
    weights.refill(made.source(kind, device).tensors())
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _serve(task: TpWorkerTask, device: torch.device, group: RankGroup) -> None:
    made = Weights.from_json(Path(task.folder), task.options)
    weights = _weights(made, device, group.rank, group.size)
    model = GpuModel.from_weights(weights, task.limits, group=group)
    group.wait_for_all()
    follow(model, group)
    for kind in made.kinds[1:]:
        _refill(model, weights, made, kind)
        group.wait_for_all()
        follow(model, group)
    model.wait()


if __name__ == "__main__":
    run_worker(_serve)
