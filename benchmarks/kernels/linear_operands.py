"""What the measured linear layers work on, and how calls are timed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from benchmarks.kernels.linear_candidates import Layer
from slipstream_kernels.ops.gpu.cublaslt.layers import LibraryLayer
from slipstream_kernels.ops.gpu.gate_up import separate_gate_up
from slipstream_kernels.ops.gpu.linear import gated_linear, linear
from slipstream_kernels.ops.gpu.linear_tile import Tile

SIMPLEST = Tile(outputs=64, tokens=16, depth=64, stages=3)
SIMPLEST_GATED = replace(SIMPLEST, outputs=32)


@dataclass
class Operands:
    """What one layer works on: copies of its weight, and rows enough for every bucket."""

    layer: Layer
    weights: list[torch.Tensor]
    x: torch.Tensor
    residual: torch.Tensor | None
    out: torch.Tensor

    @classmethod
    def random(cls, layer: Layer, rows: int, copies: int) -> Operands:
        make = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
        weights = [make(layer.weight_rows, layer.inputs).mul_(layer.inputs**-0.5) for _ in range(copies)]
        dtype = torch.float32 if layer.logits else torch.bfloat16
        out = torch.empty(rows, layer.outputs, device="cuda", dtype=dtype)
        residual = make(rows, layer.outputs) if layer.residual else None
        return cls(layer, weights, make(rows, layer.inputs), residual, out)

    def run(self, rows: int, cut: Tile | LibraryLayer, copy: int = 0) -> torch.Tensor:
        x, out, weight = self.x[:rows], self.out[:rows], self.weights[copy % len(self.weights)]
        residual = None if self.residual is None else self.residual[:rows]
        if not isinstance(cut, Tile):
            cut.run(x, weight, out, residual)
        elif self.layer.gated:
            gated_linear(x, weight, out, tile=cut)
        else:
            linear(x, weight, out, residual=residual, tile=cut)
        return out

    @property
    def simplest(self) -> Tile:
        return SIMPLEST_GATED if self.layer.gated else SIMPLEST

    def exact_rows(self, rows: int, columns: int) -> torch.Tensor:
        """float64 results of the first rows and columns."""
        parts = separate_gate_up(self.weights[0]).chunk(2) if self.layer.gated else [self.weights[0]]
        picked = torch.cat([part[:columns] for part in parts]).double()
        sums = self.x[:rows].double() @ picked.T
        if self.layer.gated:
            gate, up = sums.chunk(2, dim=1)
            return torch.nn.functional.silu(gate) * up
        return sums if self.residual is None else sums + self.residual[:rows, :columns].double()


def microseconds(calls: Sequence[Callable[[], object]], replays: int = 7) -> float:
    """Median time of a CUDA graph of `calls`, divided by their number."""
    calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(replays + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(float(start.elapsed_time(end)) * 1e3)
    return statistics.median(times[2:]) / len(calls)
