"""Rounds of small heads, by the kernels' twins."""

import pytest
import torch

from slipstream_kernels.models.gpu.draft import draft_ops
from slipstream_kernels.models.gpu.draft.medusa_forward import MedusaWeights
from slipstream_kernels.models.gpu.draft.speculator_forward import SpeculatorStage, SpeculatorWeights
from slipstream_kernels.models.gpu.draft.state_plan import StateItem, StateLimits
from slipstream_kernels.models.gpu.draft.state_round import StateRound
from slipstream_kernels.models.gpu.memory import OutOfDeviceMemoryError
from slipstream_kernels.ops.gpu.draft_trees import COUNT

HIDDEN, ENTRIES = 32, 80


def normal(*size):
    return torch.randn(size, generator=torch.Generator().manual_seed(sum(size))).bfloat16()


def medusa():
    return MedusaWeights([(normal(3 * HIDDEN, HIDDEN), None)], [normal(ENTRIES, HIDDEN)] * 3, None, 1.0)


def speculator():
    stage = SpeculatorStage(normal(HIDDEN, HIDDEN), normal(90, HIDDEN), normal(HIDDEN), normal(HIDDEN), normal(80, 32))
    return SpeculatorWeights([stage] * 3, None, 1.0, 1e-6, True)


@pytest.fixture(params=[medusa, speculator])
def draft(request):
    ops = draft_ops.twins()
    return StateRound(request.param().forward(ops), StateLimits(max_depth=3, width=2, max_sessions=4), ops=ops)


def test_padding_alone_makes_no_trees(draft):
    """As when graphs are captured."""
    for bucket in draft._buckets.all():
        trees = draft._trees_of(bucket.sessions).trees.result
        trees.fill_(7)
        draft._prepare(bucket)
        draft._run(bucket)
        assert not trees[:, COUNT].any()


def test_a_tree_depends_on_its_own_session_alone(draft):
    """Not on those beside it, nor on the round's size and levels."""
    states = [normal(number, HIDDEN)[-1:] for number in range(1, 5)]
    items = [StateItem(line, 10 + line, 20 + line, 9 - line, 3 - line % 3) for line in range(4)]
    together = draft.draft(items, states, filtered=False, penalised=False)
    assert [len(tree) for tree in together] == [9, 6, 2, 6]
    assert [tree.depth for tree in together] == [3, 2, 1, 3]
    for item, state, tree in zip(items, states, together, strict=True):
        assert draft.draft([item], [state], filtered=False, penalised=False) == [tree]
        (filtered,) = draft.draft([item], [state], filtered=True, penalised=False)
        assert filtered == tree


def test_what_does_not_fit_is_refused_with_figures(monkeypatch):
    ops = draft_ops.twins()
    monkeypatch.setattr("slipstream_kernels.models.gpu.draft.state_round.available_bytes", lambda *_: 1000)
    with pytest.raises(OutOfDeviceMemoryError, match=r"logits 0\.00 GiB.*lower max_sessions, top_k or max_depth"):
        StateRound(medusa().forward(ops), StateLimits(max_depth=3, width=2), ops=ops)
