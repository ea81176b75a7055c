"""Models to measure on a device: a folder's, an inflated one or a random one, with passes that can be looked at."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.inflate.quantised import QuantisedTensors
from benchmarks.inflate.shape import Shape
from benchmarks.inflate.tensors import source_of
from benchmarks.local_engine.local_loop import EngineConfig
from slipstream_kernels.models.checkpoint.quantisation.round_to_nearest import RoundedFormat
from slipstream_kernels.models.checkpoint.served_config import served_config, with_fp8_activations
from slipstream_kernels.models.gpu.batch.buckets import Bucket, bucket_of
from slipstream_kernels.models.gpu.batch.pass_plan import Int32
from slipstream_kernels.models.gpu.forward.flashinfer_attention import TRITON
from slipstream_kernels.models.gpu.forward.ops_namespace import twins
from slipstream_kernels.models.gpu.forward.weights import GpuWeights
from slipstream_kernels.models.gpu.gpu_model import Float32, GpuLimits, GpuModel, PassHandle, PassPlan
from slipstream_kernels.models.gpu.graph.pinned_buffers import PinnedBuffer
from slipstream_kernels.models.kv_form import FLOAT, KVForm

KINDS = ("folder", "inflated", "random")
OF_CONFIG = "config"


def make_weights(
    kind: str,
    folder: Path,
    shape: Shape,
    device: str,
    *,
    form: RoundedFormat | None = None,
    fp8_activations: bool = False,
) -> GpuWeights:
    """Weights on `device`: those of `folder`, or those of another shape made from it. Raises CheckpointError.

    kind: one of `KINDS`, or `OF_CONFIG`, random ones of the shape, and the bits, that the folder's config.json has.
    form: to which those of another shape are rounded. fp8_activations: as the verify service's --linear-activations.
    """
    if kind == "folder":
        return GpuWeights.load(folder, served_config(folder, fp8_activations=fp8_activations), device)
    if kind == OF_CONFIG:
        config = served_config(folder, fp8_activations=fp8_activations)
        return GpuWeights.random(config, device, progress=True)
    source = source_of(kind, folder, shape, device=device)
    if form is not None:
        quantised = QuantisedTensors(source, form)
        config = with_fp8_activations(quantised.config) if fp8_activations else quantised.config
        return GpuWeights.from_tensors(config, quantised.tensors(), device, progress=True)
    return GpuWeights.from_tensors(source.config, source.tensors(), device, progress=True)


class PassTimes:
    """Four events of each pass: before its plan is copied, before and after its graph, after its results are."""

    def __init__(self) -> None:
        self._passes: list[list[torch.cuda.Event]] = []
        self._drafted: list[bool] = []

    def begin(self, *, drafted: bool = False) -> None:
        """A pass begins, with or without drafted rows."""
        self._passes.append([])
        self._drafted.append(drafted)
        self.mark()

    def mark(self) -> None:
        if not self._passes:
            return  # a pass that was under way when the marks began
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._passes[-1].append(event)

    def between_graphs(self) -> list[float]:
        """Microseconds from the end of each graph to the start of the next one: copies and idle time."""
        return self._gaps(2, 1)

    def between_passes(self) -> list[float]:
        """Microseconds from the end of each pass, its results copied, to the start of the next: idle time."""
        return self._gaps(3, 0)

    def before_drafted(self) -> list[float]:
        """As `between_passes`, before those passes only that have drafted rows."""
        return self._gaps(3, 0, drafted=True)

    def drafted_rounds(self) -> list[float]:
        """Microseconds from the end of each graph to that of the next one, of passes that have drafted rows."""
        return self._gaps(2, 2, drafted=True)

    def graphs(self) -> list[float]:
        """Microseconds that each graph took."""
        return [1e3 * events[1].elapsed_time(events[2]) for _, events in self._whole()]

    def _gaps(self, end: int, start: int, *, drafted: bool = False) -> list[float]:
        """Of one event of each pass to one of the next, which has drafted rows if that is asked for."""
        pairs = pairwise(self._whole())
        return [1e3 * a[end].elapsed_time(b[start]) for (_, a), (has, b) in pairs if has or not drafted]

    def _whole(self) -> list[tuple[bool, list[torch.cuda.Event]]]:
        torch.cuda.synchronize()
        passes = zip(self._drafted, self._passes, strict=True)
        return [(drafted, events) for drafted, events in passes if len(events) == 4]


class MeasuredModel(GpuModel):
    """A model whose passes leave marks in `times` while that is set, and which keeps the plan of the last one."""

    times: PassTimes | None = None
    last_plan: PassPlan | None = None
    _costs: list[tuple[int, int, float]] | None = None

    def pass_costs(self) -> list[tuple[int, int, float]]:
        """As measured for the first loop; on the CPU made up, as twins say nothing about speed."""
        if self._costs is None:
            on_cpu = self.kv.keys.device.type == "cpu"
            self._costs = [(1, 1, 1e-3), (1, 2, 1.1e-3)] if on_cpu else super().pass_costs()
        return self._costs

    def launch(self, plan: PassPlan, *more: Any, **named: Any) -> PassHandle:
        self.last_plan = plan
        return super().launch(plan, *more, **named)

    def replay(self, plan: PassPlan, repeats: int) -> float:
        """Milliseconds of a plan's graph, run `repeats` times with nothing in between. No loop may be busy."""
        bucket = bucket_of(self._buckets, plan, self._weights.shard)
        self.launch(plan).results()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with self._on_stream():
            start.record()
            for _ in range(repeats):
                self._graphs.run(bucket)
            end.record()
        self.wait()
        return float(start.elapsed_time(end)) / repeats

    def _send(self, bucket: Bucket, plan: PassPlan, buffer: PinnedBuffer, *, chooses: bool = False) -> None:
        times = self.times
        if times is not None:
            times.begin(drafted=plan.has_trees)
        super()._send(bucket, plan, buffer, chooses=chooses)
        if times is not None:
            times.mark()

    def _receive(self, *more: Any, **named: Any) -> PassHandle:
        times = self.times
        if times is not None:
            times.mark()
        ticket = super()._receive(*more, **named)
        if times is not None:
            times.mark()
        return ticket


class HashedModel(MeasuredModel):
    """A model that answers the question for logprobs with a hash of the whole row of logits instead, as the rank.

    The hash is the sum of the row's words, each times an odd random number of 64 bits, modulo 2^64: rows that differ
    in any bit have different hashes but for one case in 2^63.
    """

    def logprobs(
        self, ticket: PassHandle, logit_indices: Int32, chosen: Int32, top: int
    ) -> tuple[Float32, Int32, Int32, Float32]:
        n = len(chosen)
        with self._on_stream(self._side_stream):
            ticket.wait_for_logits()
            logits = ticket.logits
            generator = torch.Generator(logits.device).manual_seed(0)
            factors = torch.randint(
                -(2**62), 2**62, (logits.shape[1],), generator=generator, device=logits.device, dtype=torch.int64
            )
            rows = logits[torch.from_numpy(logit_indices).to(logits.device)]
            hashes = (rows.view(torch.int32).to(torch.int64) * (2 * factors + 1)).sum(1).cpu().numpy()
        empty = np.zeros((n, top), np.int32)
        return np.zeros(n, np.float32), hashes, empty, empty.astype(np.float32)


def limits_of(config: EngineConfig, boundaries: int = 0) -> GpuLimits:
    """What a model for loops of at most `config` is prepared for, with hidden states at so many boundaries."""
    return GpuLimits(
        max_running=config.max_running,
        max_nodes=config.max_nodes,
        step_nodes=config.step_nodes,
        prefill_chunk=config.prefill_chunk,
        page_size=config.page_size,
        num_pages=config.num_pages,
        max_context=config.max_context,
        boundaries=boundaries,
        max_adapters=config.max_adapters,
        max_adapter_rank=config.max_adapter_rank,
    )


def start_model(
    weights: GpuWeights,
    config: EngineConfig,
    *,
    mode: str,
    attention: str = TRITON,
    hashed: bool = False,
    boundaries: int = 0,
    progress: bool = True,
    kv: KVForm = FLOAT,
) -> MeasuredModel:
    """A model prepared as `limits_of` says; on the CPU it is made of the ops' twins in torch."""
    kind = HashedModel if hashed else MeasuredModel
    ops = twins() if weights.embedding.device.type == "cpu" else None
    limits = replace(limits_of(config, boundaries), kv=kv)
    model = kind.from_weights(weights, limits, mode=mode, attention=attention, ops=ops, progress=progress)
    assert isinstance(model, MeasuredModel)
    return model
