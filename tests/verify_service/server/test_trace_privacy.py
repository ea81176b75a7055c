"""What a trace does not tell."""

from __future__ import annotations

from slipstream.generation_types import SpeculationStep, StepTrace
from verify_service.server.trace_privacy import without_other_texts

TRACE = StepTrace(4, (8, 4, 9), (-1, 0, -1), accepted=(0,), sources=("suffix", "suffix", "ngram"))
MIXED = SpeculationStep(3, 1, "hybrid", trace=TRACE)
ALONE = SpeculationStep(3, 1, "suffix", trace=StepTrace(4, (8, 4, 9), (-1, 0, -1), accepted=(0,)))


def test_only_accepted_tokens_of_a_proposer_that_remembers_others_are_told() -> None:
    mixed, alone = (without_other_texts(step, "suffix".__eq__).trace for step in (MIXED, ALONE))
    assert mixed is not None and mixed.token_ids == (8, None, 9)
    assert alone is not None and alone.token_ids == (8, None, None)
    assert mixed.parents == alone.parents == TRACE.parents


def test_others_are_told_whole() -> None:
    for step in (MIXED, ALONE, SpeculationStep(3, 1, "suffix")):
        assert without_other_texts(step, lambda name: False) is step
