"""A run learns, goes on where it stood to the same bits, and shares its work among processes."""

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from safetensors.torch import load_file

from draft_service.heads.loading import load_eagle
from support.fit_sources import InMemory, answered, small_target
from training.common.atomic_files import MismatchError
from training.fit.parallel import World
from training.fit.run import CHECKPOINTS, fit, remove_run
from training.fit.settings import FitSettings, RunOptions

ALONE = World(0, 1, torch.device("cpu"))
SETTINGS = FitSettings(unroll=3, draft_vocab=64, row_length=48, batch_rows=4, lr=3e-3, max_steps=12, epochs=20, chain=3)
KILLED_AT = Path(CHECKPOINTS) / "step-00000004.pt"
QUIET = RunOptions(log_every=3, evaluate_every=6, checkpoint_every=4, progress=False)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> InMemory:
    folder = tmp_path_factory.mktemp("target")
    model = small_target(folder)
    return InMemory(folder, [answered(model, number, prompt=5 + number % 7, answer=12) for number in range(24)])


def fresh(source: InMemory, fails_at: int = -1) -> InMemory:
    return InMemory(source.model, source.sequences, fails_at=fails_at)


@pytest.fixture(scope="module")
def whole(source: InMemory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    fit(source, folder, SETTINGS, QUIET, ALONE, heldout=source)
    return folder


def results(folder: Path) -> dict[str, bytes]:
    names = ("head/model.safetensors", "head/config.json", "head/README.md", "metrics.jsonl", "metrics.json")
    names += ("manifest.json",)
    return {name: (folder / name).read_bytes() for name in names}


def test_it_learns_and_its_head_is_served(whole: Path, source: InMemory) -> None:
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [3, 6, 6, 9, 12, 12]
    heldout = [line for line in lines if line["kind"] == "heldout"]
    assert heldout[-1]["loss_by_step"][0] < heldout[0]["loss_by_step"][0]
    head = load_eagle(whole / "head", source.model)
    assert head.family == "eagle3" and head.vocabulary.ids is not None and len(head.vocabulary.ids) == 64
    summary = json.loads((whole / "metrics.json").read_bytes())
    assert summary["simulated_acceptance_length"] == heldout[-1]["acceptance_length"] >= 1
    assert len(list((whole / CHECKPOINTS).glob("*.pt"))) == 2


def test_its_card_tells_what_it_is(whole: Path, source: InMemory) -> None:
    manifest = json.loads((whole / "manifest.json").read_bytes())
    card = (whole / "head" / "README.md").read_text()
    held = manifest["heldout"]
    tokens = sum(len(each.token_ids) for each in source.sequences)
    produced = sum(int(each.produced.sum()) for each in source.sequences)
    assert f"24 sequences of 24 conversations: {tokens} tokens, of which {produced} are learnt from" in card
    assert f"| test | 24 | {produced} |" in card
    assert f"An EAGLE-3 head for {source.model.name}, a model of 8 layers" in card
    assert f"slipstream serve --model {source.model.name} --draft eagle3:" in card
    assert "| tokens scored | 64 of 128 |" in card and f"{manifest['head']['coverage']:.2%}" in card
    assert f"A chain of 3 yields {held['acceptance_length']:.2f} tokens" in card
    assert f"| lr | {SETTINGS.lr} |" in card and "| boundaries whose states it learnt from | 2, 4, 5, 9 |" in card


def test_frozen_scores_stay_the_targets(source: InMemory, tmp_path: Path) -> None:
    settings = replace(SETTINGS, freeze_scores=True, draft_vocab=0, max_steps=2)
    fit(source, tmp_path, settings, QUIET, ALONE)
    head, target = (load_file(folder / "model.safetensors") for folder in (tmp_path / "head", source.model))
    assert not head.keys() & {"lm_head.weight", "d2t", "t2d"}
    assert not torch.equal(head["norm.weight"], target["model.norm.weight"])
    served = load_eagle(tmp_path / "head", source.model).vocabulary
    assert torch.equal(served.head, target["model.embed_tokens.weight"].float()) and served.ids is None
    with pytest.raises(ValueError, match="freeze_scores"):
        replace(settings, init="random")
    with pytest.raises(ValueError, match="freeze_scores"):
        replace(settings, family="mtp")


def test_a_run_that_fails_goes_on_to_the_same_bits(whole: Path, source: InMemory, tmp_path: Path) -> None:
    for fails_at in (9, 4):
        with pytest.raises(OSError, match="disk"):
            fit(fresh(source, fails_at), tmp_path, SETTINGS, QUIET, ALONE, heldout=source)
    fit(fresh(source), tmp_path, SETTINGS, QUIET, ALONE, heldout=source)
    assert results(tmp_path) == results(whole)


def train_until_killed(source: InMemory, folder: Path) -> None:
    """A run that goes no further once it has the checkpoint."""
    original = source.batch

    def batch(indices):
        if (folder / KILLED_AT).is_file():
            time.sleep(600)
        return original(indices)

    source.batch = batch
    fit(source, folder, SETTINGS, QUIET, ALONE, heldout=source)


def test_a_killed_run_goes_on_to_the_same_bits(whole: Path, source: InMemory, tmp_path: Path) -> None:
    process = mp.get_context("spawn").Process(target=train_until_killed, args=(fresh(source), tmp_path))
    process.start()
    while process.is_alive() and not (tmp_path / KILLED_AT).is_file():
        time.sleep(0.01)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL and not (tmp_path / "manifest.json").exists()
    fit(fresh(source), tmp_path, SETTINGS, QUIET, ALONE, heldout=source)
    assert results(tmp_path) == results(whole)


def test_another_run_is_refused(whole: Path, source: InMemory) -> None:
    before = results(whole)
    with pytest.raises(MismatchError, match="settings"):
        fit(source, whole, FitSettings(unroll=3), QUIET, ALONE, heldout=source)
    fewer = InMemory(source.model, source.sequences[:5])
    with pytest.raises(MismatchError, match="features"):
        fit(fewer, whole, SETTINGS, QUIET, ALONE, heldout=source)
    assert fit(source, whole, SETTINGS, QUIET, ALONE, heldout=source)["steps"] == 12
    assert results(whole) == before


def test_removed_runs_leave_nothing(source: InMemory, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="disk"):
        fit(fresh(source, 9), tmp_path, SETTINGS, QUIET, ALONE)
    remove_run(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"family": "eagle4"}, "family is 'eagle4'"),
        ({"boundaries": (2, 3, 4)}, r"boundaries \[2, 4, 5, 9\], \[3\] are wanted"),
        ({"boundaries": (2, 40)}, r"\[40\] are none of a model of 8 layers"),
        ({"draft_vocab": 500}, "draft_vocab is 500, must be 1 to 128"),
    ],
)
def test_settings_that_do_not_fit_are_refused(change, message: str, source: InMemory, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        fit(source, tmp_path, FitSettings(**change), QUIET, ALONE)
    assert not list(tmp_path.iterdir())  # the folder is free for another attempt
