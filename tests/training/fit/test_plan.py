"""Rows and steps are functions of lengths and seed, and lose no sequence."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from support.fit_sources import InMemory
from training.features.source import FeatureSequence
from training.fit.plan import FitPlan, Survey, pack
from training.fit.settings import FitSettings


def test_packing_keeps_every_sequence_and_the_length() -> None:
    lengths = np.random.default_rng(0).integers(1, 100, 3000).tolist()
    order = np.random.default_rng(1).permutation(3000).tolist()
    rows = pack(lengths, order, 128)
    assert sorted(index for row in rows for index in row) == list(range(3000))
    assert max(sum(lengths[index] for index in row) for row in rows) <= 128
    assert sum(lengths) / (128 * len(rows)) > 0.97


def source(counts: list[tuple[int, int]]) -> InMemory:
    """Sequences of so many tokens, the last ones produced."""
    made = [
        FeatureSequence(str(n), "", torch.arange(n), torch.arange(n) >= n - produced, torch.empty(n, 0))
        for n, produced in counts
    ]
    return InMemory(Path(), made)


def planned(**more: int) -> tuple[FitPlan, Survey]:
    texts = source([(10, 6)] * 7 + [(30, 20)] * 6 + [(9, 1)] * 2)
    survey = Survey.of(texts, row_length=24, steps=3, vocab_size=64)
    return FitPlan(survey, FitSettings(row_length=24, batch_rows=3, **more)), survey


def test_a_survey_counts_what_can_be_learnt() -> None:
    _, survey = planned(epochs=2)
    assert survey.lengths.tolist() == [10] * 7 + [24] * 6 + [9] * 2
    assert survey.counts[0].tolist() == [5, 4, 3]
    assert survey.counts[7].tolist() == [13, 12, 11]  # cut at 24 of 30, from 10 on produced
    assert survey.counts[13].tolist() == [0, 0, 0]
    assert survey.frequencies[4] == 7 and survey.frequencies.sum() == 7 * 6 + 6 * 14 + 2
    with pytest.raises(ValueError, match="vocabulary of 8"):
        Survey.of(source([(10, 6)]), row_length=24, steps=3, vocab_size=8)


def test_a_survey_tells_what_there_is_by_category() -> None:
    tokens, produced = torch.arange(10), torch.arange(10) >= 4
    sizes = {f"set {n}": 2 * n + 1 for n in range(26)} | {"": 70}
    made = [
        FeatureSequence(f"{name} {n // 2}", name, tokens, produced, torch.empty(10, 0), part=n % 2)
        for name, size in sizes.items() for n in range(size)
    ]  # fmt: skip
    document = Survey.of(InMemory(Path(), made), row_length=8, steps=1, vocab_size=64).document()
    assert (document["sequences"], document["prompts"]) == (746, 26 * 27 // 2 + 35)
    assert (document["tokens"], document["produced"], document["recorded"]) == (8 * 746, 4 * 746, 0)
    names = list(document["categories"])
    assert names[:2] == ["without a category", "set 25"] and names[-1] == "3 others"
    assert document["categories"]["set 25"] == {"sequences": 51, "produced": 204}
    assert document["categories"]["3 others"] == {"sequences": 1 + 3 + 5, "produced": 36}


def test_every_epoch_has_every_row_once() -> None:
    plan, survey = planned(epochs=6)
    assert (plan.used, plan.left_out, len(plan.rows)) == (13, 2, 10)
    assert plan.steps == 20
    seen: Counter[int] = Counter()
    for step in range(plan.steps):
        rows, counts = plan.step(step)
        assert len(rows) == 3
        assert counts.tolist() == sum(survey.counts[row].sum(axis=0) for row in rows).tolist()
        seen.update(index for row in rows for index in row)
    assert seen == Counter(dict.fromkeys(range(13), 6))
    again = planned(epochs=6)[0]
    assert again.step(17)[0] == plan.step(17)[0] != planned(epochs=6, seed=1)[0].step(17)[0]
    assert planned(epochs=6, max_steps=4)[0].steps == 4


def test_nothing_to_learn_is_told() -> None:
    survey = Survey.of(source([(5, 1), (3, 0)]), row_length=24, steps=2, vocab_size=64)
    with pytest.raises(ValueError, match="nothing to learn"):
        FitPlan(survey, FitSettings())
