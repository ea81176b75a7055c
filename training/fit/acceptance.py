"""How many tokens a verify step would yield, read off a text that the target wrote."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

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
    goes_on = torch.stack(
        [hits & F.pad(findings.agrees, (0, step))[:, step:] for step, hits in enumerate(findings.hits)]
    )
    # Of the chain from each position: tokens that have a verdict, those accepted, and how far the next chain is.
    known = torch.arange(steps, device=goes_on.device)[:, None, None] < batch.reach
    reached = torch.cat((torch.ones_like(goes_on[:1]), goes_on[:-1])).to(torch.uint8).cumprod(dim=0) * known
    of_chain = torch.stack(
        [reached.sum(dim=0), (reached * findings.hits).sum(dim=0), (reached * goes_on).sum(dim=0) + 1]
    )
    tried, accepted, ahead = of_chain.to(torch.int32).cpu().numpy()
    begun = np.zeros(tried.shape, np.bool_)
    for row, steps_ahead in zip(begun, ahead.tolist(), strict=True):
        base = 0
        while base < len(steps_ahead):
            row[base] = True
            base += steps_ahead[base]
    depths = np.arange(steps)[:, None]
    return Chances((tried[begun] > depths).sum(axis=1), (accepted[begun] > depths).sum(axis=1))
