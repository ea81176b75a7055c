"""A run may begin with the head of another, if it is the like of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from slipstream_kernels.models.checkpoint.model_config import CheckpointError
from support.fit_sources import InMemory, answered, small_target
from training.common.atomic_files import MismatchError
from training.fit.family import FAMILIES
from training.fit.parallel import World
from training.fit.run import fit
from training.fit.settings import FitSettings, RunOptions

ALONE = World(0, 1, torch.device("cpu"))
QUIET = RunOptions(progress=False, check_labels=False)
STILL = {"lr": 1e-30, "max_steps": 1, "row_length": 40, "batch_rows": 1}
SHAPES = {"eagle3": {"draft_vocab": 64, "unroll": 2}, "mlp-speculator": {"unroll": 2}}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> InMemory:
    folder = tmp_path_factory.mktemp("target")
    model = small_target(folder)
    return InMemory(folder, [answered(model, number, prompt=4 + number, answer=9) for number in range(4)])


def head_of(source: InMemory, folder: Path, **more: object) -> Path:
    settings = FitSettings(**STILL | more)  # type: ignore[arg-type]  # each value is its field's
    fit(source, folder, settings, QUIET, ALONE)
    return folder / "head"


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"draft-model"}))
def test_a_head_goes_on_as_it_was(family: str, source: InMemory, tmp_path: Path) -> None:
    shape = {"family": family, **SHAPES.get(family, {})}
    first = head_of(source, tmp_path / "first", seed=1, init="random", **shape)
    fewer = InMemory(source.model, source.sequences[:2])
    if family == "eagle3":
        del shape["draft_vocab"]
    second = head_of(fewer, tmp_path / "second", start=first, seed=2, **shape)
    before, after = (load_file(head / "model.safetensors") for head in (first, second))
    assert before.keys() == after.keys()
    assert all(torch.allclose(before[name], after[name], rtol=0, atol=1e-20) for name in before)


def test_what_it_began_with_is_part_of_a_run(source: InMemory, tmp_path: Path) -> None:
    first = head_of(source, tmp_path / "first", **SHAPES["eagle3"])
    settings = FitSettings(**STILL | {"unroll": 2, "start": first})  # type: ignore[arg-type]  # as above
    manifest = fit(source, tmp_path / "second", settings, QUIET, ALONE)
    assert manifest["start"]["folder"] == str(first)
    assert [each["name"] for each in manifest["start"]["weights"]] == ["model.safetensors"]
    weights = load_file(first / "model.safetensors")
    save_file(weights | {"norm.weight": weights["norm.weight"] * 2}, first / "model.safetensors")
    with pytest.raises(MismatchError, match="start"):
        fit(source, tmp_path / "second", settings, QUIET, ALONE)


def test_rows_that_a_head_leaves_to_the_target_are_the_targets(source: InMemory, tmp_path: Path) -> None:
    expected = load_file(source.model / "model.safetensors")["model.embed_tokens.weight"]
    whole = {"unroll": 2, "draft_vocab": len(expected)}
    frozen = head_of(source, tmp_path / "frozen", freeze_scores=True, **whole)
    learnt = head_of(source, tmp_path / "learnt", start=frozen, **whole)
    weights = load_file(learnt / "model.safetensors")
    rows = weights.pop("lm_head.weight")
    assert torch.equal(rows, expected)
    before = load_file(frozen / "model.safetensors")
    assert before.keys() == weights.keys() and all(torch.equal(before[name], weights[name]) for name in before)
    again = head_of(source, tmp_path / "again", start=learnt, freeze_scores=True, **whole)
    assert load_file(again / "model.safetensors").keys() == before.keys()
    save_file(weights | {"lm_head.weight": rows * 2}, learnt / "model.safetensors")
    with pytest.raises(ValueError, match=r"lm_head.weight of .* is not the target's"):
        head_of(source, tmp_path / "other", start=learnt, freeze_scores=True, **whole)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"family": "mtp"}, "architectures of .* is .*Eagle3"),
        ({"intermediate_size": 16}, "intermediate_size of .* is 48, here it is 16"),
        ({"draft_vocab": 32}, "draft_vocab is 32, .* scores 64 tokens"),
        ({"boundaries": (2, 4)}, "eagle_aux_hidden_state_layer_ids"),
    ],
)
def test_another_kind_of_head_is_refused(
    change: dict[str, object], message: str, source: InMemory, tmp_path: Path
) -> None:
    first = head_of(source, tmp_path / "first", **SHAPES["eagle3"])
    with pytest.raises(ValueError, match=message):
        head_of(source, tmp_path / "second", start=first, **{"unroll": 2} | change)


def test_a_folder_that_is_no_whole_head_is_refused(source: InMemory, tmp_path: Path) -> None:
    first = head_of(source, tmp_path / "first", **SHAPES["eagle3"])
    weights = load_file(first / "model.safetensors")
    (first / "model.safetensors").unlink()
    with pytest.raises(CheckpointError):
        head_of(source, tmp_path / "second", start=first)
    for broken, message in (
        ({name: tensor for name, tensor in weights.items() if name != "fc.weight"}, "fc.weight of .* is missing"),
        (weights | {"more": torch.ones(1)}, "more of .* has no place here"),
        (weights | {"norm.weight": torch.ones(3)}, r"norm.weight of .* has the shape \[3\], here it has \[32\]"),
        (weights | {"t2d": ~weights["t2d"]}, "t2d of .* is another"),
    ):
        save_file(broken, first / "model.safetensors")
        with pytest.raises(ValueError, match=message):
            head_of(source, tmp_path / "second", start=first, unroll=2)
    with pytest.raises(ValueError, match="noise, not with both"):
        replace(FitSettings(start=first), init="random")
