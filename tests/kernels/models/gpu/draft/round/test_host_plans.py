"""Plans are written one after the other, and each arrives as it was written."""

from __future__ import annotations

import torch

from slipstream_kernels.models.gpu.draft.round.host_plans import HostPlans


def test_plans_are_taken_in_turn_and_sent_as_far_as_they_are_filled() -> None:
    plans, target = HostPlans(4, torch.device("cpu")), torch.zeros(6, dtype=torch.int32)
    turns = []
    for number in range(1, 8):
        plans.take()
        turns.append(plans.turn)
        plans.words[:] = number
        plans.send(target, 3)
        assert target.tolist() == [number] * 3 + [0] * 3
    assert turns == [*turns[:3], *turns[:3], turns[0]] and len(set(turns)) == 3
