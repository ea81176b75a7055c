"""How many tokens a verify step would yield, read off a text that the target wrote."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from training.fit.batch import Batch
from training.fit.family import Findings


@dataclass(frozen=True, slots=True)
class Chances:
    """Drafted tokens of chains. tried, accepted: int64 [steps], of those whose chain was accepted up to them."""

    tried: np.ndarray
    accepted: np.ndarray

    @property
    def length(self) -> float:
        """Acceptance length, the bonus token included: 1 plus the chances that a chain is accepted to each depth.

        A chain whose text ends is counted as far as it is known (the estimate of Kaplan and Meier, 1958).
        """
        return 1.0 + float(np.cumprod(self.accepted / np.maximum(self.tried, 1)).sum())

    def __add__(self, other: Chances) -> Chances:
        return Chances(self.tried + other.tried, self.accepted + other.accepted)


def simulate(batch: Batch, findings: Findings) -> Chances:
    """Decode the batch's texts at temperature 0 with chains as long as `findings` has steps.

    As in serving, the next chain begins where the last one was rejected. A drafted token is accepted where it is the
    target's most likely one; where the text goes on with another (it was sampled), nothing is known of what would
    follow, and the chain ends there without a verdict on the rest. Of texts written at temperature 0 this is what the
    engine does, but for the ends of answers, which cut its last steps short.
    """
    steps = len(findings.hits)
    tried, accepted = np.zeros(steps, np.int64), np.zeros(steps, np.int64)
    reach = batch.reach.cpu().numpy()
    hits, agrees = findings.hits.cpu().numpy(), findings.agrees.cpu().numpy()
    for row in range(len(reach)):
        base, length = 0, reach.shape[1]
        while base < length:
            step = 0
            while step < min(steps, reach[row, base]):
                tried[step] += 1
                if not hits[step, row, base]:
                    break
                accepted[step] += 1
                if not agrees[row, base + step]:
                    break
                step += 1
            base += step + 1
    return Chances(tried, accepted)


def pooled(chances: Chances, device: torch.device) -> Tensor:
    """Both rows as float64 [2, steps], to be summed over processes."""
    return torch.from_numpy(np.stack([chances.tried, chances.accepted])).to(device, torch.float64)
