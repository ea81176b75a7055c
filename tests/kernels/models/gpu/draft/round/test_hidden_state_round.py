"""Rounds of small heads, by the kernels' twins."""

from dataclasses import fields, is_dataclass, replace

import pytest
import torch

from slipstream_kernels.models.gpu.draft.networks import draft_ops
from slipstream_kernels.models.gpu.draft.networks.medusa_forward import MedusaWeights
from slipstream_kernels.models.gpu.draft.networks.mlp_speculator_forward import SpeculatorStage, SpeculatorWeights
from slipstream_kernels.models.gpu.draft.round.hidden_state_plan import HiddenStateItem, HiddenStateLimits
from slipstream_kernels.models.gpu.draft.round.hidden_state_round import HiddenStateRound
from slipstream_kernels.models.gpu.memory_plan import OutOfDeviceMemoryError
from slipstream_kernels.ops.gpu.draft_trees import COUNT
from slipstream_kernels.ops.gpu.sampling_table import pack_line

HIDDEN, ENTRIES = 32, 80


def normal(*size):
    return torch.randn(size, generator=torch.Generator().manual_seed(sum(size))).bfloat16()


def medusa():
    return MedusaWeights([(normal(3 * HIDDEN, HIDDEN), None)], [normal(ENTRIES, HIDDEN)] * 3, None, 1.0)


def speculator():
    stage = SpeculatorStage(normal(HIDDEN, HIDDEN), normal(90, HIDDEN), normal(HIDDEN), normal(HIDDEN), normal(80, 32))
    return SpeculatorWeights([stage] * 3, None, 1.0, 1e-6, True)


LIMITS = HiddenStateLimits(max_depth=3, width=2, max_sessions=4)


@pytest.fixture(params=[medusa, speculator])
def weights(request):
    return request.param()


@pytest.fixture
def draft(weights):
    ops = draft_ops.twins()
    return HiddenStateRound(weights.forward(ops), LIMITS, ops=ops)


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
    items = [HiddenStateItem(line, 10 + line, 20 + line, 9 - line, 3 - line % 3) for line in range(4)]
    together = draft.draft(items, states, filtered=False, penalised=False)
    assert [len(tree) for tree in together] == [9, 6, 2, 6]
    assert [tree.depth for tree in together] == [3, 2, 1, 3]
    for item, state, tree in zip(items, states, together, strict=True):
        assert draft.draft([item], [state], filtered=False, penalised=False) == [tree]
        (filtered,) = draft.draft([item], [state], filtered=True, penalised=False)
        assert filtered == tree


@pytest.mark.parametrize("rules", [{}, {"presence": 1.0}])
def test_kernels_make_the_trees_of_their_twins(draft, weights, rules):
    """In the interpreter, where there is no GPU."""
    place = "cuda" if torch.cuda.is_available() else "cpu"
    ops = draft_ops.kernels()
    other = HiddenStateRound(on(weights, place).forward(ops), LIMITS, ops=ops)
    items = [HiddenStateItem(0, 10, 20, 9, 3), HiddenStateItem(2, 5, 7, 4, 2)]
    trees = []
    for each in (draft, other):
        for line, temperature in ((0, 0.0), (2, 0.8)):
            with each.change_tables():
                each.tables.set_line(line, pack_line(temperature=temperature, seed=3, **rules))
        states = [normal(number, HIDDEN)[-1:] for number in (1, 2)]
        trees.append(each.draft(items, states, filtered=False, penalised=bool(rules)))
    for one, same in zip(*trees, strict=True):
        assert (one.token_ids, one.parents) == (same.token_ids, same.parents)
        assert one.log_probs == pytest.approx(same.log_probs, abs=0.02)


def on(record, place):
    """Weights with their tensors elsewhere."""
    if isinstance(record, torch.Tensor):
        return record.to(place)
    if isinstance(record, list | tuple):
        return [on(each, place) for each in record]
    if is_dataclass(record):
        return replace(record, **{entry.name: on(getattr(record, entry.name), place) for entry in fields(record)})
    return record


def test_what_does_not_fit_is_refused_with_figures(monkeypatch):
    ops = draft_ops.twins()
    monkeypatch.setattr("slipstream_kernels.models.gpu.draft.round.hidden_state_round.available_bytes", lambda *_: 1000)
    with pytest.raises(OutOfDeviceMemoryError, match=r"logits 0\.00 GiB.*lower max_sessions, top_k or max_depth"):
        HiddenStateRound(medusa().forward(ops), LIMITS, ops=ops)


def test_trees_that_nobody_read_yet_outlive_the_next_round(draft):
    states = [normal(number, HIDDEN)[-1:] for number in range(1, 4)]
    items = [HiddenStateItem(line, 10 + line, 20 + line, 9, 3) for line in range(3)]
    rules = {"filtered": False, "penalised": False}
    alone = [draft.draft([item], [state], **rules) for item, state in zip(items, states, strict=True)]
    tickets = [draft.begin([item], [state], **rules) for item, state in zip(items, states, strict=True)]
    assert [ticket.trees() for ticket in tickets] == alone
    assert len({tree.log_probs for (tree,) in alone}) == 3
