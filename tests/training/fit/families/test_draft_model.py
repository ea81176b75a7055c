"""A draft model is taught by the target at every token of its answers, and learns."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from slipstream_kernels.models.checkpoint.fingerprint import fingerprint
from support.fit_sources import InMemory, answered, small_target
from training.fit.batch import Batch, collate
from training.fit.families.draft_model import DraftModelHead
from training.fit.family import family_of
from training.fit.parallel import world
from training.fit.plan import Survey
from training.fit.run import columns_of, fit
from training.fit.settings import FitSettings, RunOptions
from training.fit.target import TargetRows

STEPS, LENGTH, VOCABULARY = 3, 48, 128


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> InMemory:
    folder = tmp_path_factory.mktemp("target")
    model = small_target(folder)
    return InMemory(folder, [answered(model, number, prompt=5 + number, answer=15) for number in range(4)])


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("draft")
    small_target(folder, seed=3)
    return folder


def made(source: InMemory, start: Path) -> DraftModelHead:
    chosen = family_of(FitSettings("draft-model", start=start, row_length=LENGTH))
    target = TargetRows(source.model, torch.device("cpu"), torch.float32)
    survey = Survey.of(source, row_length=LENGTH, steps=1, vocab_size=VOCABULARY)
    head = chosen.build(target, columns_of(source, chosen, target), survey)
    assert isinstance(head, DraftModelHead)
    return head


def packed(source: InMemory) -> Batch:
    rows = [[0, 1], [2], [3]]
    return collate([source.batch(row) for row in rows], LENGTH).to(torch.device("cpu"), torch.float32)


def test_loss_and_hits_are_those_of_each_text_alone(source: InMemory, start: Path) -> None:
    head, batch = made(source, start), packed(source)
    counts = torch.tensor([float((batch.reach > step).sum()) for step in range(STEPS)])
    with torch.no_grad():
        findings = head.look(batch, counts, steps=STEPS, noise=None)
    target = TargetRows(source.model, torch.device("cpu"), torch.float32)
    total, checked = torch.zeros(()), 0
    for row, begin, index in ((0, 0, 0), (0, len(source[0].token_ids), 1), (1, 0, 2), (2, 0, 3)):
        sequence = source[index]
        with torch.no_grad():
            scores = head.model(sequence.token_ids[None])[0].log_softmax(-1)
        truth = target.logits(sequence.states[:, 96:].float())
        for place in range(len(sequence.token_ids)):
            for step in range(min(STEPS, int(batch.reach[row, begin + place]))):
                at = place + 1 + step
                hit = bool(scores[at].argmax() == truth[at].argmax())
                assert bool(findings.hits[step, row, begin + place]) == hit
                checked += 1
                if step == 0:
                    total -= (truth[at].softmax(-1) * scores[at]).sum() / counts[0]
    assert checked == int(counts.sum()) > 100
    assert torch.allclose(findings.loss, total, rtol=1e-4)
    assert findings.correct.tolist() == findings.hits.sum(dim=(1, 2)).tolist()


def test_a_run_comes_nearer_to_the_target_and_writes_a_model_of_the_same_layout(
    source: InMemory, start: Path, tmp_path: Path
) -> None:
    settings = FitSettings(
        "draft-model", start=start, epochs=40, row_length=LENGTH, batch_rows=3, lr=3e-3, chain=STEPS, warmup=0.1
    )
    options = RunOptions(log_every=1, progress=False)
    (source.model / "tokenizer.json").write_text("{}")
    with world("cpu") as group:
        fit(source, tmp_path, settings, options, group, None)
    assert fingerprint(tmp_path / "head").tokenizer == fingerprint(source.model).tokenizer
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    losses = [float(line.split('"loss": ')[1].split(",")[0]) for line in lines]
    assert losses[-1] < 0.8 * losses[0]
    written, first = load_file(tmp_path / "head" / "model.safetensors"), load_file(start / "model.safetensors")
    assert {name: tensor.shape for name, tensor in written.items()} == {n: t.shape for n, t in first.items()}
    assert any(not torch.equal(written[name], first[name]) for name in first)


@pytest.mark.parametrize("setting", [{"boundaries": (1,)}, {"draft_vocab": 9}, {"intermediate_size": 8}, {"unroll": 2}])
def test_what_a_draft_model_has_no_use_for_is_refused(setting: dict[str, object], start: Path) -> None:
    settings = replace(FitSettings("draft-model", start=start), **setting)  # type: ignore[arg-type]  # one right field
    with pytest.raises(ValueError, match=next(iter(setting))):
        family_of(settings)


def test_a_start_is_needed() -> None:
    with pytest.raises(ValueError, match="start: name the folder"):
        family_of(FitSettings("draft-model"))


@pytest.mark.parametrize("change", [{"tie_word_embeddings": False}, {"model_type": "qwen3"}, {"vocab_size": 256}])
def test_a_start_of_another_kind_is_refused(
    source: InMemory, start: Path, tmp_path: Path, change: dict[str, object]
) -> None:
    config = json.loads((start / "config.json").read_bytes())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ValueError, match="start"):
        made(source, tmp_path)


def test_a_start_may_lend_its_shape_alone(source: InMemory, start: Path) -> None:
    chosen = family_of(FitSettings("draft-model", start=start, row_length=LENGTH, init="random"))
    target = TargetRows(source.model, torch.device("cpu"), torch.float32)
    survey = Survey.of(source, row_length=LENGTH, steps=1, vocab_size=VOCABULARY)
    fresh = chosen.build(target, columns_of(source, chosen, target), survey).tensors()
    assert {name: tensor.shape for name, tensor in fresh.items()} == {
        name: tensor.shape for name, tensor in made(source, start).tensors().items()
    }
    assert not torch.equal(
        fresh["model.embed_tokens.weight"], made(source, start).tensors()["model.embed_tokens.weight"]
    )
