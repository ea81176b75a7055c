"""Medusa heads and MLP speculators in training compute what they compute when served, with the weights written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from draft_service.heads.medusa_loading import load_medusa
from draft_service.heads.mlp_speculator_loading import load_mlp_speculator
from support.fit_sources import InMemory, answered, small_target
from training.features.source import FeatureSequence
from training.fit.batch import Batch, collate
from training.fit.families.distilled_head import JudgedHead
from training.fit.family import family_of
from training.fit.head_folder import write_head
from training.fit.plan import Survey
from training.fit.run import columns_of
from training.fit.settings import FitSettings
from training.fit.target import TargetRows

HEADS, LENGTH, VOCABULARY = 4, 48, 128
FAMILIES = ("medusa", "mlp-speculator")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> InMemory:
    folder = tmp_path_factory.mktemp("target")
    model = small_target(folder)
    return InMemory(folder, [answered(model, number, prompt=5 + number, answer=15) for number in range(4)])


def made(source: InMemory, family: str, inner: int = 0) -> JudgedHead:
    """A head whose weights are anything but what they begin as."""
    size = inner if family == "mlp-speculator" else 0
    chosen = family_of(FitSettings(family, unroll=HEADS, chain=HEADS, intermediate_size=size))
    target = TargetRows(source.model, torch.device("cpu"), torch.float32)
    survey = Survey.of(source, row_length=LENGTH, steps=HEADS, vocab_size=VOCABULARY)
    head = chosen.build(target, columns_of(source, chosen, target), survey)
    generator = torch.Generator().manual_seed(2)
    for parameter in head.module.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    assert isinstance(head, JudgedHead)
    return head


def packed(source: InMemory) -> tuple[Batch, list[list[int]]]:
    rows = [[0, 1], [2], [3]]
    return collate([source.batch(row) for row in rows], LENGTH).to(torch.device("cpu"), torch.float32), rows


def served(family: str, folder: Path, source: InMemory, sequence: FeatureSequence, place: int) -> Tensor:
    """Scores [heads, vocabulary] behind position `place` of the text, which predicted the token after it."""
    state = sequence.states[place : place + 1, 96:].float()
    if family == "medusa":
        heads = load_medusa(folder, source.model)
        return torch.cat([heads.logits(head, state) for head in range(len(heads))])
    stages = load_mlp_speculator(folder, source.model)
    scores = []
    for stage in range(min(len(stages), len(sequence.token_ids) - place - 1)):
        state = stages.forward(stage, state, sequence.token_ids[place + 1 + stage][None])
        scores.append(stages.logits(stage, state))
    return torch.cat(scores)


@pytest.mark.parametrize(("family", "inner"), [("medusa", 0), ("mlp-speculator", 0), ("mlp-speculator", 24)])
def test_training_equals_serving(family: str, inner: int, source: InMemory, tmp_path: Path) -> None:
    head = made(source, family, inner)
    write_head(tmp_path, head.tensors(), head.config(), torch.float32)
    batch, rows = packed(source)
    with torch.no_grad():
        drafted = head.draft(batch, HEADS)
        scores = drafted.scored @ head._score_weight().T
    checked = 0
    for row, indices in enumerate(rows):
        begin = 0
        for index in indices:
            sequence = source[index]
            for place in range(len(sequence.token_ids)):
                mine = drafted.flat == row * LENGTH + begin + place
                if not mine.any():
                    continue
                wanted = served(family, tmp_path, source, sequence, place)
                steps = drafted.step[mine]
                assert steps.tolist() == list(range(len(steps)))
                assert (scores[mine] - wanted[steps]).abs().max() < 1e-4
                checked += len(steps)
            begin += len(sequence.token_ids)
    assert checked == len(drafted.flat) > 150


@pytest.mark.parametrize("family", FAMILIES)
def test_each_step_is_judged_by_the_token_it_drafts(family: str, source: InMemory) -> None:
    head, (batch, _) = made(source, family), packed(source)
    counts = torch.tensor([float((batch.reach > step).sum()) for step in range(HEADS)])
    findings, drafted = head.look(batch, counts, steps=HEADS, noise=None), head.draft(batch, HEADS)
    target = TargetRows(source.model, torch.device("cpu"), torch.float32)
    total = torch.zeros(())
    for row, (flat, step) in enumerate(zip(drafted.flat.tolist(), drafted.step.tolist(), strict=True)):
        b, i = divmod(flat, LENGTH)
        truth = target.logits(batch.states[b, i + 1 + step, 96:][None])[0]
        mine = (drafted.scored[row] @ head._score_weight().T).log_softmax(-1)
        total = total - 0.8**step / counts[step] * (truth.softmax(-1) * mine).sum()
        assert bool(findings.hits[step, b, i]) == bool(mine.argmax() == truth.argmax())
    assert torch.allclose(findings.loss, total, rtol=1e-5)
    assert findings.hits.sum() > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_no_longer_chain_is_simulated_than_can_be_drafted(family: str) -> None:
    with pytest.raises(ValueError, match="chain is 5, must be at most 3"):
        family_of(FitSettings(family, unroll=3, chain=5))
    assert [family_of(FitSettings(family, unroll=steps)).chain for steps in (3, 7)] == [3, 5]


@pytest.mark.parametrize("family", [*FAMILIES, "mtp"])
@pytest.mark.parametrize("setting", [{"boundaries": (1, 2)}, {"draft_vocab": 10}])
def test_settings_of_other_families_are_refused(family: str, setting: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(setting))):
        family_of(FitSettings(family, **setting))  # type: ignore[arg-type]  # one field of the right type
