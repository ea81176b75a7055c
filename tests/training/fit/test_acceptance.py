"""The simulated chains are those that a drafter would have had accepted."""

from pathlib import Path

import numpy as np
import pytest
import torch

from draft_service.heads.loading import load_eagle
from support.fit_sources import InMemory, answered, small_target
from support.served_chain import drafted_chain
from training.fit.acceptance import Chances, simulate
from training.fit.batch import Batch, collate
from training.fit.family import Findings, family_of
from training.fit.head_folder import write_head
from training.fit.plan import Survey
from training.fit.run import columns_of
from training.fit.settings import FitSettings
from training.fit.target import TargetRows


def found(reach: list[int], hits: list[list[int]], agrees: list[int]) -> Chances:
    grid = torch.zeros(1, len(reach), dtype=torch.int64)
    batch = Batch.of(grid, grid, grid, torch.tensor([reach]), grid)
    right = torch.tensor(hits, dtype=torch.bool)[:, None]
    nothing = torch.zeros(())
    return simulate(batch, Findings(nothing, nothing, nothing, right, torch.tensor([agrees], dtype=torch.bool)))


def test_chains_follow_one_another() -> None:
    # From 1: two accepted of two, the next root is 4. From 4: refused at once. From 5: one accepted, then refused.
    chances = found([0, 6, 5, 4, 3, 2, 1, 0], [[0, 1, 0, 0, 0, 1, 1, 0], [0, 1, 0, 0, 0, 0, 0, 0]], [1] * 8)
    assert chances.tried.tolist() == [3, 2] and chances.accepted.tolist() == [2, 1]
    assert chances.length == pytest.approx(1 + 2 / 3 + 2 / 3 * 1 / 2)


def test_nothing_is_known_beyond_a_sampled_token_or_the_end() -> None:
    # From 0 the draft is right, but the text goes on otherwise: no verdict on step 1. From 1 the text ends.
    chances = found([2, 1, 0], [[1, 1, 0], [1, 0, 0]], [0, 1, 1])
    assert chances.tried.tolist() == [2, 0] and chances.accepted.tolist() == [2, 0]


def test_simulated_is_what_serving_accepts(tmp_path: Path) -> None:
    """Greedy text, decoded anew with the draft service's head and its own drafts."""
    model = small_target(tmp_path / "target")
    sequences = [answered(model, number, prompt=6, answer=24, greedy=True) for number in range(3)]
    source = InMemory(tmp_path / "target", sequences)
    target = TargetRows(source.model, torch.device("cpu"), torch.float32)
    settings = FitSettings(draft_vocab=96)
    family = family_of(settings)
    survey = Survey.of(source, row_length=64, steps=3, vocab_size=128)
    head = family.build(target, columns_of(source, family, target), survey)
    batch = collate([source.batch([0, 1]), source.batch([2])], 64).to(torch.device("cpu"), torch.float32)
    counts = torch.from_numpy(survey.counts.sum(axis=0)).float()
    chances = simulate(batch, head.look(batch, counts, steps=3, noise=None))

    write_head(tmp_path / "head", head.tensors(), head.config(), torch.float32)
    served = load_eagle(tmp_path / "head", source.model)
    tried, accepted = np.zeros(3, int), np.zeros(3, int)
    for sequence in sequences:
        ids, root = sequence.token_ids, int(sequence.produced.nonzero()[0])
        while root + 1 < len(ids):
            states = sequence.states[:, :96].float()
            logits = drafted_chain(served, ids, states, root - 1, 3, lambda _, scores: int(scores.argmax()))
            step = 0
            while step < 3 and root + 1 + step < len(ids):
                tried[step] += 1
                if int(logits[step].argmax()) != int(ids[root + 1 + step]):
                    break
                accepted[step] += 1
                step += 1
            root += step + 1
    assert chances.tried.tolist() == tried.tolist()
    assert chances.accepted.tolist() == accepted.tolist()
    assert 5 < accepted.sum() < tried.sum()
