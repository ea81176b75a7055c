"""The work of a step on a GPU, captured once: then it is asked for with one launch instead of a thousand.

A head of some million parameters is done with each kernel long before Python has asked for the next one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from training.fit.batch import Batch
from training.fit.family import Findings, Head

WARM_UPS = 3
"""Steps before the capture, in which libraries choose and load their kernels."""


class StepGraph:
    """Loss and gradients of batches in one frame. Gradients are those of the last batch, never of several."""

    def __init__(self, head: Head, parameters: Sequence[nn.Parameter], steps: int, batch: Batch) -> None:
        """batch: any of the frame, on the device; its memory is where those to come are put. No other thread uses the
        device meanwhile.
        """
        self._batch = batch
        self._counts = torch.ones(steps, device=batch.tokens.device)
        stream = torch.cuda.Stream(batch.tokens.device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                head.look(self._batch, self._counts, steps=steps, noise=None).loss.backward()
                for parameter in parameters:
                    parameter.grad = None
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._findings = head.look(self._batch, self._counts, steps=steps, noise=None)
            self._findings.loss.backward()

    def step(self, batch: Batch, counts: Tensor) -> Findings:
        """As `Head.look` gives them, until the next call; leaves its gradients in the parameters."""
        for name, tensor in batch.tensors.items():
            self._batch.tensors[name].copy_(tensor, non_blocking=True)
        self._counts.copy_(counts, non_blocking=True)
        self._graph.replay()
        return self._findings
