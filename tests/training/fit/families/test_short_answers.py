"""Answers of a token or two leave late steps, or all of them, without a position: every family takes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from support.fit_sources import BOUNDARIES, SHAPE, InMemory, small_target
from training.features.source import FeatureSequence
from training.fit.acceptance import simulate
from training.fit.batch import collate
from training.fit.family import FAMILIES, Head, family_of
from training.fit.parallel import World
from training.fit.plan import Survey
from training.fit.run import columns_of, fit
from training.fit.settings import FitSettings, RunOptions
from training.fit.target import TargetRows

STEPS, LENGTH = 4, 16
ALONE = World(0, 1, torch.device("cpu"))
QUIET = RunOptions(log_every=1, evaluate_every=1, checkpoint_every=0, progress=False, check_labels=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    small_target(folder)
    return folder


def of_lengths(model: Path, *lengths: tuple[int, int]) -> InMemory:
    """Random sequences of so many tokens of prompt and answer each."""
    generator = torch.Generator().manual_seed(0)
    sequences = []
    for number, (prompt, answer) in enumerate(lengths):
        ids = torch.randint(4, SHAPE.vocab_size, (prompt + answer,), generator=generator)
        states = torch.randn(len(ids), len(BOUNDARIES) * SHAPE.hidden_size, generator=generator).bfloat16()
        sequences.append(FeatureSequence(str(number), "test", ids, torch.arange(len(ids)) >= prompt, states))
    return InMemory(model, sequences)


def settings_of(family: str, model: Path) -> FitSettings:
    if family == "draft-model":
        return FitSettings(family, chain=STEPS, start=model, row_length=LENGTH, batch_rows=1, max_steps=2)
    size = 64 if family == "eagle3" else 0
    return FitSettings(
        family, unroll=STEPS, chain=STEPS, draft_vocab=size, row_length=LENGTH, batch_rows=1, max_steps=2
    )


def made(source: InMemory, family: str) -> Head:
    chosen = family_of(settings_of(family, source.model))
    target = TargetRows(source.model, torch.device("cpu"), torch.float32)
    survey = Survey.of(source, row_length=LENGTH, steps=STEPS, vocab_size=SHAPE.vocab_size)
    return chosen.build(target, columns_of(source, chosen, target), survey)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("lengths", [[(3, 0)], [(1, 0), (2, 1)], [(0, 1), (0, 2)], [(3, 2)], [(3, 2), (2, 3), (1, 1)]])
def test_positions_are_counted_where_there_are_any(model: Path, family: str, lengths: list[tuple[int, int]]) -> None:
    source = of_lengths(model, *lengths)
    head, batch = made(source, family), collate([source.sequences], LENGTH).to(torch.device("cpu"), torch.float32)
    counts = torch.stack([(batch.reach > step).sum() for step in range(STEPS)]).float()
    findings = head.look(batch, counts, steps=STEPS, noise=None)
    findings.loss.backward()
    loss = float(findings.loss.detach())
    assert np.isfinite(loss) and (loss > 0) == bool(counts.sum())
    assert findings.hits.shape == (STEPS, 1, LENGTH) and (findings.correct <= counts).all()
    assert ((findings.losses > 0) <= (counts > 0)).all()
    simulated = simulate(batch, findings)
    assert (simulated.tried <= counts.numpy()).all() and 1 <= simulated.length <= 1 + np.count_nonzero(counts)
    gradients = [each.grad for each in head.module.parameters() if each.grad is not None]
    assert gradients and all(torch.isfinite(each).all() for each in gradients)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_run_learns_from_and_measures_on_them(model: Path, family: str, tmp_path: Path) -> None:
    source = of_lengths(model, (3, 2), (9, 2), (4, 1), (14, 2))
    heldout = of_lengths(model, (5, 2), (3, 0), (2, 1), (12, 3))
    manifest = fit(source, tmp_path, settings_of(family, model), QUIET, ALONE, heldout)
    assert manifest["steps"] == 2 and 1 <= manifest["heldout"]["acceptance_length"] <= 3


def test_held_out_sequences_that_show_nothing_are_refused(model: Path, tmp_path: Path) -> None:
    source = of_lengths(model, (3, 4))
    for lengths in ([(3, 0)], [(3, 1), (0, 1)]):
        with pytest.raises(ValueError, match="heldout: no sequence has two tokens"):
            fit(source, tmp_path, settings_of("eagle3", model), QUIET, ALONE, of_lengths(model, *lengths))
    assert not list(tmp_path.iterdir())
