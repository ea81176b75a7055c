"""A batch in a frame teaches what it teaches without: what fills the frame counts for nothing."""

from __future__ import annotations

import pytest
import torch

from support.fit_sources import SHAPE, InMemory, answered, small_target
from training.fit.acceptance import simulate
from training.fit.batch import Batch, Frame, collate
from training.fit.family import FAMILIES, Findings, Head, family_of
from training.fit.plan import FitPlan, Survey
from training.fit.run import columns_of
from training.fit.settings import FitSettings
from training.fit.step_graph import StepGraph
from training.fit.target import TargetRows

CPU = torch.device("cpu")
STEPS, LENGTH = 3, 40
SETTINGS = FitSettings(row_length=LENGTH, batch_rows=4, epochs=6)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> InMemory:
    folder = tmp_path_factory.mktemp("target")
    model = small_target(folder)
    return InMemory(folder, [answered(model, number, prompt=3 + number % 5, answer=9 + number) for number in range(8)])


@pytest.fixture(scope="module")
def plan(source: InMemory) -> FitPlan:
    return FitPlan(Survey.of(source, row_length=LENGTH, steps=STEPS, vocab_size=SHAPE.vocab_size), SETTINGS)


def made(source: InMemory, family: str) -> Head:
    settings = FitSettings(family, unroll=STEPS, draft_vocab=64 if family == "eagle3" else 0, argmax_weight=0.3)
    target, chosen = TargetRows(source.model, CPU, torch.float32), family_of(settings)
    survey = Survey.of(source, row_length=LENGTH, steps=STEPS, vocab_size=SHAPE.vocab_size)
    head = chosen.build(target, columns_of(source, chosen, target), survey)
    generator = torch.Generator().manual_seed(1)
    for parameter in head.module.parameters():
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
    return head


def learnt(head: Head, batch: Batch, counts: torch.Tensor) -> tuple[Findings, list[torch.Tensor]]:
    findings = head.look(batch, counts, steps=STEPS, noise=None)
    return findings, list(torch.autograd.grad(findings.loss, list(head.module.parameters())))


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"draft-model"}))
def test_a_frame_changes_nothing(family: str, source: InMemory, plan: FitPlan) -> None:
    head, (rows, counted) = made(source, family), plan.step(1)
    counts, documents = plan.largest(0, 1)
    frame = Frame.of(counts, len(rows), documents)
    sequences = [source.batch(row) for row in rows]
    bare, framed = (collate(sequences, LENGTH, frame=each).to(CPU, torch.float32) for each in (None, frame))
    assert frame.sizes[0] > len(bare.counting) and frame.edges > len(bare.ends)
    totals = torch.from_numpy(counted).float()
    (plain, gradients), (within, others) = learnt(head, bare, totals), learnt(head, framed, totals)
    assert torch.allclose(plain.loss, within.loss, rtol=1e-5) and torch.allclose(plain.losses, within.losses, rtol=1e-5)
    assert torch.equal(plain.correct, within.correct)
    assert torch.equal(plain.hits, within.hits[:, :, :LENGTH]) and not within.hits[:, :, LENGTH:].any()
    before, after = simulate(bare, plain), simulate(framed, within)
    assert before.tried.tolist() == after.tried.tolist() and before.accepted.tolist() == after.accepted.tolist()
    for mine, theirs in zip(gradients, others, strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-6)


def test_every_step_of_every_process_fits(source: InMemory, plan: FitPlan) -> None:
    for size in (1, 2):
        for rank in range(size):
            counts, documents = plan.largest(rank, size)
            frame = Frame.of(counts, SETTINGS.batch_rows // size, documents)
            empty = frame.empty(SETTINGS.batch_rows // size, LENGTH, 8, torch.float32)
            found = [
                collate([source.batch(row) for row in plan.step(step)[0][rank::size]], LENGTH)
                for step in range(plan.steps)
            ]
            assert [max(len(batch.at(step)) for batch in found) for step in range(STEPS)] == counts
            for batch in found:
                fitted = batch.fitted(frame)
                for name in ("counting", "ends"):
                    assert getattr(fitted, name).shape == getattr(empty, name).shape
                assert fitted.ends[-1] == batch.tokens.numel() and not fitted.ends.diff().lt(0).any()


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")  # of parameters that the graph was made with
def test_a_graph_teaches_what_its_steps_do(source: InMemory, plan: FitPlan) -> None:
    """The same bits each time, and batch for batch what is launched kernel by kernel, within what bfloat16 rounds."""
    device, dtype = torch.device("cuda"), torch.bfloat16
    target, chosen = TargetRows(source.model, device, dtype), family_of(FitSettings(unroll=STEPS, draft_vocab=64))
    survey = Survey.of(source, row_length=LENGTH, steps=STEPS, vocab_size=SHAPE.vocab_size)
    head = chosen.build(target, columns_of(source, chosen, target), survey)
    parameters = list(head.module.parameters())
    counts, documents = plan.largest(0, 1)
    frame = Frame.of(counts, SETTINGS.batch_rows, documents)
    width = source.sequences[0].states.shape[1]
    graph = StepGraph(head, parameters, STEPS, frame.empty(SETTINGS.batch_rows, LENGTH, width, dtype).to(device, dtype))
    for step in range(3):
        rows, counted = plan.step(step)
        batch = collate([source.batch(row) for row in rows], LENGTH, frame=frame, pinned=True).to(device, dtype)
        totals = torch.from_numpy(counted).float().to(device)
        once, again = (taught(graph, parameters, batch, totals) for _ in range(2))
        assert all(torch.equal(*pair) for pair in zip(once, again, strict=True))
        plain, gradients = learnt(head, batch, totals)
        for mine, theirs in zip(once, [plain.loss, plain.losses, *gradients], strict=True):
            assert (mine - theirs).norm() <= 0.02 * theirs.norm()


def taught(graph: StepGraph, parameters: list[torch.Tensor], batch: Batch, totals: torch.Tensor) -> list[torch.Tensor]:
    """Losses, then gradients, out of memory that the next step takes."""
    findings = graph.step(batch, totals)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return [each.detach().clone() for each in (findings.loss, findings.losses, *gradients)]
