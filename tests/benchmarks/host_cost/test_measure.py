"""What the host does for a round, over a device that computes nothing: both forms draft as they do on a GPU."""

from __future__ import annotations

import pytest

from benchmarks.host_cost.forms import FORMS, SERVICE
from benchmarks.host_cost.measure import measure
from benchmarks.host_cost.parts import DRAFT_THREAD, LOOP_THREAD


@pytest.mark.parametrize("form", FORMS)
def test_rounds_draft_behind_passes_and_are_split_by_part(form: str) -> None:
    cost = measure(form, requests=3, rounds=8, seconds=0.005, rows=4)
    assert 1.5 < cost.tokens < 4.0, "trees are verified, and a part of each is accepted"
    assert 0.0 <= cost.critical < cost.loop
    spent = cost.parts[LOOP_THREAD]
    assert spent["draft behind: asked"] > 0.0
    assert spent["trees attached"] > 0.0
    drafting = cost.parts[DRAFT_THREAD if form == SERVICE else LOOP_THREAD]
    assert drafting["draft behind: round"] > 0.0
    assert cost.calls[LOOP_THREAD] > 50.0
    worker = cost.calls.get(DRAFT_THREAD, 0.0)  # which may not have run at all
    assert (worker > 50.0) == (form == SERVICE)
