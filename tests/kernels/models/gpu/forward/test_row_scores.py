from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from slipstream_kernels.models.gpu.batch.pass_plan import PassPlan
from slipstream_kernels.models.gpu.forward import row_scores
from slipstream_kernels.models.gpu.forward.ops_namespace import Ops, kernels, twins
from slipstream_kernels.models.gpu.gpu_model import GpuLimits, GpuModel
from support.gpu_passes import Span, pass_of
from support.models import make_tiny_model

LIMITS = GpuLimits(max_running=3, max_nodes=8, step_nodes=24, prefill_chunk=24, num_pages=6, max_context=64)
PROMPT, OTHER = list(range(100, 121)), [3, 4, 5]
ROWS = (5, 0, 1, 2, 3, 4, 6, 7, 20, 18, 21)
"""Of a pass of PROMPT and then OTHER."""


def load(folder: Path, ops: Ops | None = None) -> GpuModel:
    """On the twins of the kernels, or on the kernels: in Triton's interpreter where there is no GPU."""
    device = "cuda" if ops is not None and torch.cuda.is_available() else "cpu"
    model = GpuModel.load(folder, LIMITS, device=device, ops=ops or twins(), progress=False)
    model.kv.keys.fill_(torch.nan)
    model.kv.values.fill_(torch.nan)
    if device == "cuda":
        torch.cuda.synchronize()  # passes run on a stream of their own
    model.set_pages(0, 0, range(2))
    model.set_pages(1, 0, [4])
    model.set_pages(2, 0, [5])
    return model


def scored_plan(model: GpuModel) -> PassPlan:
    plan = pass_of(model.limits, [Span(0, PROMPT, 0, range(2)), Span(1, OTHER, 0, [4])])
    wanted = [(row, (37 * row) % 512, 2 + row % 3) for row in ROWS]
    return replace(plan, scored=np.array(wanted, np.int32))


def test_they_are_those_of_logits_that_the_pass_itself_gives(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_scores, "SLICE_ROWS", 4)
    model = load(tiny_model)
    plan = scored_plan(model)
    plain = model.launch(replace(plan, scored=plan.scored[:0]))
    results, logits = plain.results()[:, 66].tolist(), plain.logits.clone()
    assert plain.scores is None
    ticket = model.launch(plan)
    assert ticket.results()[:, 66].tolist() == results
    assert torch.equal(ticket.logits, logits)
    for token in (9, 10, 11):  # passes behind it do not matter
        model.launch(pass_of(model.limits, [Span(2, [token], token - 9, [5])])).results()
    found = model.scores(ticket)
    whole = pass_of(model.limits, [Span(0, PROMPT, 0, range(2)), Span(1, OTHER, 0, [4])], all_logits=True)
    expected = model.logprobs(model.launch(whole), plan.scored[:, 0].copy(), plan.scored[:, 1].copy(), 4)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert found[2].shape == (len(ROWS), 4)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # rows of padding are computed on whatever memory held
def test_on_the_kernels_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_scores, "SLICE_ROWS", 2)
    folder = make_tiny_model(tmp_path / "least", layers=1, vocab_size=272, hidden_size=64, intermediate_size=64)
    ours, theirs = load(folder, kernels()), load(folder)
    plan = pass_of(ours.limits, [Span(0, PROMPT[:6], 0, range(2)), Span(1, OTHER, 0, [4])])
    plan = replace(plan, scored=np.array([(8, 5, 2), (2, 7, 2), (5, 9, 2)], np.int32))
    ticket = ours.launch(plan)
    found, twin = ours.scores(ticket), theirs.scores(theirs.launch(plan))
    decided = ours.logprobs(ticket, np.array([1, 0], np.int32), np.array([5, 9], np.int32), 2)
    for mine, reference in zip(found, decided, strict=True):
        np.testing.assert_array_equal(mine[[0, 2]], reference)
    np.testing.assert_allclose(found[0], twin[0], atol=0.05)


def test_rows_are_found_again_where_the_pass_is_put_in_order(tiny_model: Path) -> None:
    model = load(tiny_model)
    spans = [Span(0, PROMPT, 0, range(2)), Span(2, [77], 0, [5])]  # the one that decodes comes first in order
    scored = np.array([(0, 3, 1), (21, 4, 1), (20, 5, 1)], np.int32)
    plan = replace(pass_of(model.limits, spans), scored=scored)
    assert not plan.in_order
    found = model.scores(model.launch(plan))
    whole = model.launch(pass_of(model.limits, spans[::-1], all_logits=True))
    expected = model.logprobs(whole, np.array([1, 0, 21], np.int32), scored[:, 1].copy(), 1)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_their_room_is_in_the_memory_plan(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_room = load(tiny_model).memory.logits
    monkeypatch.setattr(row_scores, "SLICE_ROWS", 1)
    config = load(tiny_model)
    assert with_room - config.memory.logits == (LIMITS.prefill_chunk - 1) * (4 * 512 + 2 * config.config.hidden_size)
