"""The time that one call of an op adds to a CUDA graph."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable

import torch

CALLS, REPLAYS = 20, 15


def microseconds(op: Callable[[], None]) -> float:
    """Time of one call among CALLS in a graph, median over REPLAYS."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            op()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(REPLAYS + 4)]
    for event in events:
        graph.replay()
        event.record()
    torch.cuda.synchronize()
    times: list[float] = [before.elapsed_time(after) for before, after in itertools.pairwise(events[3:])]
    return statistics.median(times) * 1000 / CALLS
