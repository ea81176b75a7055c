"""The unrolled step computes what a drafter computes step by step, with the weights that training writes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from draft_service.heads.eagle import EagleHead
from draft_service.heads.loading import load_eagle
from draft_service.heads.mtp_loading import load_mtp
from support.fit_sources import BOUNDARIES, InMemory, answered, small_target
from support.served_chain import drafted_chain
from training.fit.batch import Batch, collate
from training.fit.families.training_time_test import UnrolledHead
from training.fit.family import family_of
from training.fit.head_folder import write_head
from training.fit.plan import Survey
from training.fit.run import columns_of
from training.fit.settings import FitSettings
from training.fit.target import TargetRows

STEPS = 7
LENGTH = 44


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> InMemory:
    folder = tmp_path_factory.mktemp("target")
    model = small_target(folder)
    sequences = [answered(model, number, prompt=6 + number, answer=14) for number in range(5)]
    return InMemory(folder, sequences)


def made(source: InMemory, family: str) -> UnrolledHead:
    settings = FitSettings(family, unroll=STEPS, draft_vocab=64 if family == "eagle3" else 0)
    target = TargetRows(source.model, torch.device("cpu"), torch.float32)
    chosen = family_of(settings)
    survey = Survey.of(source, row_length=LENGTH, steps=STEPS, vocab_size=128)
    head = chosen.build(target, columns_of(source, chosen, target), survey)
    generator = torch.Generator().manual_seed(1)
    for parameter in head.module.parameters():
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
    assert isinstance(head, UnrolledHead)
    return head


def packed(source: InMemory) -> tuple[Batch, list[list[int]]]:
    rows = [[0, 1], [2], [3]]
    batch = collate([source.batch(row) for row in rows], LENGTH)
    return batch.to(torch.device("cpu"), torch.float32), rows


@pytest.mark.parametrize("family", ["eagle3", "eagle", "mtp"])
def test_unrolled_step_equals_serving(family: str, source: InMemory, tmp_path: Path) -> None:
    head = made(source, family)
    write_head(tmp_path, head.tensors(), head.config(), torch.float32)
    load: Callable[[Path, Path], EagleHead] = load_mtp if family == "mtp" else load_eagle
    served = load(tmp_path, source.model)
    batch, rows = packed(source)
    with torch.no_grad():
        drafted = head.draft(batch, STEPS)
    scores = torch.full((len(drafted.flat), 128), -torch.inf)
    with torch.no_grad():
        scores[:, head._ids] = drafted.scored @ head._score_weight().T
    read = slice(0, 96) if family == "eagle3" else slice(96, 128)
    checked = 0
    for row, indices in enumerate(rows):
        begin = 0
        for index in indices:
            sequence = source[index]
            states = sequence.states[:, read].float()
            for place in range(len(sequence.token_ids)):
                mine = drafted.flat == row * LENGTH + begin + place
                if not mine.any():
                    continue
                steps = int(mine.sum())
                follows = sequence.token_ids[place + 2 :]
                wanted = drafted_chain(
                    served, sequence.token_ids, states, place, steps, lambda step, _, ids=follows: int(ids[step])
                )
                assert drafted.step[mine].tolist() == list(range(steps))
                assert torch.equal(wanted.isinf(), scores[mine].isinf())
                finite = wanted.isfinite()
                assert (scores[mine][finite] - wanted[finite]).abs().max() < 1e-4
                checked += steps
            begin += len(sequence.token_ids)
    assert checked == len(drafted.flat) > 200
    assert served.num_states == len(BOUNDARIES[:3] if family == "eagle3" else BOUNDARIES[3:])


@pytest.mark.parametrize("family", ["eagle3", "eagle", "mtp"])
def test_loss_is_that_of_the_definition(family: str, source: InMemory) -> None:
    """Every position and step on its own, from full score matrices."""
    head, (batch, _) = made(source, family), packed(source)
    steps = 4
    counts = torch.tensor([float((batch.reach > step).sum()) for step in range(steps)])
    findings = head.look(batch, counts, steps=steps, noise=None)
    drafted = head.draft(batch, steps)
    embedding = TargetRows(source.model, torch.device("cpu"), torch.float32).embedding
    final = batch.states.float()[..., 96:]
    ids = head._ids
    total, correct = torch.zeros(()), np.zeros(steps, int)
    for row, (flat, step) in enumerate(zip(drafted.flat.tolist(), drafted.step.tolist(), strict=True)):
        b, i = divmod(flat, LENGTH)
        truth = final[b, i + 1 + step]
        scores = embedding @ truth
        mine = (drafted.scored[row] @ head._score_weight().T).log_softmax(-1)
        weight = 0.8**step / counts[step]
        if family == "eagle":
            distance = torch.nn.functional.smooth_l1_loss(drafted.states[row], truth)
            total = total + weight * (distance - 0.1 * (scores.softmax(-1) * mine).sum())
        elif scores.argmax() in ids:
            total = total - weight * (scores[ids].softmax(-1) * mine).sum()
        hit = ids[mine.argmax()] == scores.argmax()
        correct[step] += int(hit)
        assert bool(findings.hits[step, b, i]) == bool(hit)
    assert findings.correct.tolist() == correct.tolist()
    assert torch.allclose(findings.loss, total, rtol=1e-5)
    parameters = list(head.module.parameters())
    for fused, plain in zip(
        torch.autograd.grad(findings.loss, parameters), torch.autograd.grad(total, parameters), strict=True
    ):
        assert torch.allclose(fused, plain, rtol=1e-3, atol=1e-6)
