"""One step after the other: rows to gradients, gradients to weights, all of it a function of the step's number."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from training.features.source import FeatureSource
from training.fit.acceptance import Chances, simulate
from training.fit.batch import Batch
from training.fit.family import Findings, Head
from training.fit.loader import Loader, Share, compute_dtype
from training.fit.metrics import Figures
from training.fit.optimizer import Optimizer
from training.fit.parallel import World
from training.fit.settings import FitSettings
from training.fit.step_graph import StepGraph


def learning_rate(step: int, steps: int, settings: FitSettings) -> float:
    """Linear up over the warm-up, then half a cosine down to 0, or constant."""
    warmup = math.ceil(settings.warmup * steps)
    if step < warmup:
        return settings.lr * (step + 1) / warmup
    if settings.schedule == "constant":
        return settings.lr
    return settings.lr * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


class Learner:
    """A head and its optimiser."""

    def __init__(self, head: Head, settings: FitSettings, steps: int, total_steps: int, world: World) -> None:
        """steps: unroll steps of the loss. total_steps: those of the run, to whose end the learning rate falls."""
        self.head, self._settings, self._steps, self._total, self._world = head, settings, steps, total_steps, world
        self._optimizer = Optimizer(head.module, settings)
        self._parameters = self._optimizer.parameters
        self._graph: StepGraph | None = None

    def step(self, step: int, share: Share, tally: FindingSums | None) -> dict[str, float]:
        """Learn from a step. Figures are added to `tally`; gives the learning rate and the norm of the gradient."""
        rate = learning_rate(step, self._total, self._settings)
        share.arrive()
        for number, batch in enumerate(share.batches):
            findings = self._learn(batch, share.totals, _seed(self._settings.seed, step, self._world.rank, number))
            if tally is not None:
                tally.add(batch, findings)
        self._world.sum_gradients(self._parameters)
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._settings.clip, error_if_nonfinite=False)
        self._optimizer.step(rate)
        if self._graph is None:
            self._optimizer.forget()
        return {"lr": rate, "gradient_norm": float(norm)} if tally is not None else {}

    def capture(self, batch: Batch) -> None:
        """Have the device keep the work of a step, of which it is reminded for each from here on.

        batch: any in the frame of those to come, of which each step has one. The head is one that `repeats`.
        """
        self._graph = StepGraph(
            self.head, self._parameters, self._steps, batch.to(self._world.device, compute_dtype(self._world.device))
        )

    def _learn(self, batch: Batch, totals: Tensor, noise: int) -> Findings:
        """Leaves, or adds, the gradients."""
        if self._graph is not None:
            return self._graph.step(batch, totals)
        findings = self.head.look(batch, totals, steps=self._steps, noise=noise)
        findings.loss.backward()
        return findings

    @torch.no_grad()
    def evaluate(self, source: FeatureSource, rows: Sequence[Sequence[int]], counts: np.ndarray) -> Figures:
        """Figures over `rows`, chains unrolled as far as `counts` int64 [chain], the positions that count."""
        tally = FindingSums(len(counts), self._world.device)
        size = self._settings.batch_rows
        jobs = ((rows[at : at + size], counts) for at in range(0, len(rows), size))
        for share in Loader(source, self._settings, self._world).shares(jobs):
            share.arrive()
            for batch in share.batches:
                tally.add(batch, self.head.look(batch, share.totals, steps=len(counts), noise=None))
        return tally.figures(counts, self._world.sum)

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of it."""
        return {"head": self.head.module.state_dict(), "optimizer": self._optimizer.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        self.head.module.load_state_dict(state["head"])
        self._optimizer.restore(state["optimizer"])


class FindingSums:
    """Sums of findings on the device."""

    def __init__(self, steps: int, device: torch.device) -> None:
        self._sums = torch.zeros(2 * steps + 1, dtype=torch.float64, device=device)
        self._chances = Chances(np.zeros(steps, np.int64), np.zeros(steps, np.int64))

    def add(self, batch: Batch, findings: Findings) -> None:
        """Count a batch."""
        self._sums += torch.cat((findings.loss.detach()[None], findings.losses, findings.correct)).double()
        self._chances += simulate(batch, findings)

    def figures(self, counts: np.ndarray, summed: Callable[[Tensor], Tensor]) -> Figures:
        """Over all processes, whose tensors `summed` adds up. counts int64 [steps]: positions of all."""
        steps = len(counts)
        chances = torch.from_numpy(np.concatenate([self._chances.tried, self._chances.accepted]))
        sums = summed(torch.cat((self._sums, chances.to(self._sums)))).cpu().numpy()
        positions = np.maximum(counts, 1)
        tried, accepted = sums[2 * steps + 1 :].astype(np.int64).reshape(2, steps)
        return Figures(
            float(sums[0]),
            (sums[1 : 1 + steps] / positions).tolist(),
            (sums[1 + steps : 1 + 2 * steps] / positions).tolist(),
            Chances(tried, accepted),
        )


def _seed(*parts: int) -> int:
    digest = hashlib.sha256(",".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
