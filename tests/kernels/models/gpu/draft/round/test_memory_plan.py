"""What a draft takes is known before it takes any, and refused with figures."""

import pytest
import torch

from slipstream_kernels.models.gpu.draft.networks import draft_ops
from slipstream_kernels.models.gpu.draft.networks.eagle_forward import EagleForward
from slipstream_kernels.models.gpu.draft.networks.eagle_weights import random_eagle3
from slipstream_kernels.models.gpu.draft.round.draft_round import DraftRound
from slipstream_kernels.models.gpu.draft.round.limits import DraftLimits
from slipstream_kernels.models.gpu.draft.round.memory_plan import plan_draft_memory
from slipstream_kernels.models.gpu.memory_plan import OutOfDeviceMemoryError
from slipstream_kernels.ops.rope import Rope

LIMITS = DraftLimits(max_depth=3, width=2, max_tokens=512, max_context=256, max_sessions=4)


def forward():
    weights = random_eagle3(
        hidden=64, intermediate=96, heads=2, kv_heads=1, head_dim=64, vocab=128, entries=80, device="cpu"
    )
    return EagleForward(weights, draft_ops.twins())


def test_every_byte_is_planned():
    head = forward()
    draft = DraftRound(head, LIMITS, rope=Rope(1e4))
    held = [value for value in vars(draft).values() if isinstance(value, torch.Tensor)]
    held += [*vars(draft._buffers).values(), *vars(draft._tables).values(), draft._kv.keys, draft._kv.values]
    buffers = head._buffers
    held += [getattr(buffers, name) for name in buffers.__dataclass_fields__]
    storages = {
        each.untyped_storage().data_ptr(): each.untyped_storage().nbytes()
        for each in held
        if isinstance(each, torch.Tensor)
    }
    planned = draft.memory.needed - head.nbytes
    assert sum(storages.values()) <= planned * 1.1


def test_what_does_not_fit_is_refused_with_figures():
    head, sizes = forward(), DraftRound(forward(), LIMITS, rope=Rope(1e4))._sizes
    plan = plan_draft_memory(head, LIMITS, sizes, 16, graphs=0, available=2**40)
    assert plan.pages == (512 // 16 + 4) * 16 * 4 * 64
    assert plan.scratch == 2 * 4 * 2 * 4 * 64
    assert plan_draft_memory(head, LIMITS, sizes, 16, graphs=0, available=plan.needed).needed == plan.needed
    with pytest.raises(OutOfDeviceMemoryError, match=r"KV pages .* GiB available; lower max_tokens"):
        plan_draft_memory(head, LIMITS, sizes, 16, graphs=0, available=plan.needed - 1)
