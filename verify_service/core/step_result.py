"""What is known of a step: as it is launched, while it runs on its device, and once it is decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from verify_service.core.acceptance import AcceptedPath
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.core.step_time_model import PROFILED_CONTEXT
from verify_service.hidden_states.device_ring import RingSlice

if TYPE_CHECKING:
    import torch

Routes = Mapping[ScheduledRequest, tuple[RingSlice, ...]]
"""Where states of a step's items go on the device."""


class StepTimes(NamedTuple):
    """Seconds by an engine's clock: that it idled for before a step, since the one before; that the step took it."""

    idle: float
    busy: float


class VerifyResult(NamedTuple):
    """Tokens that a step decided for a request, not yet cut to its limits.

    `first_row` is the root's row in the step's logits, where logprobs are read; its nodes' rows follow. `failure` says
    why the last token is NO_TOKEN where that is not the logits' fault.
    """

    item: ScheduledRequest
    path: AcceptedPath
    first_row: int
    failure: str = ""


def mean_context(decisions: Sequence[VerifyResult]) -> float:
    """Tokens that each request of a step has; the profiled context of a step that decides nothing."""
    lengths = [len(decision.item.state.tokens) for decision in decisions]
    return sum(lengths) / len(lengths) if lengths else PROFILED_CONTEXT


@dataclass(frozen=True, slots=True, eq=False)
class StepHandle:
    """A step that an engine was given; engines add what they need to decide it."""

    deciding: Sequence[ScheduledRequest]

    def spans(self, item: ScheduledRequest) -> Sequence[RingSlice]:
        """Where states of an item go on the device."""
        return ()

    @property
    def over(self) -> bool:
        """Whether the engine has computed it."""
        return True

    @property
    def experts_awake(self) -> int:
        """Experts that the step has computed with, over all layers, once it is decided; 0 of a model without."""
        return 0


class DeviceStepResult(NamedTuple):
    """What a step under way leaves on its device, once `ready` comes; None where all is there.

    Row i of `results`, int32 [items, 130] as `tree_walk` writes it, is of the i-th item that decides. `routes`: where
    states of items go.
    """

    results: torch.Tensor
    ready: torch.cuda.Event | None
    routes: Routes
