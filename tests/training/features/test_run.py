"""A run of features: the same bytes however it is cut, batched or killed, and refusals before it starts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest

from support.features import write_answers
from support.killed_features import SETTINGS, SHARD_BYTES, run
from training.common.atomic_files import DamagedError, MismatchError, sole_user
from training.features.dataset import FeatureSet
from training.features.disk_space import NoRoomError
from training.features.progress import Mark, Progress, last_whole
from training.features.run import PROGRESS, extract_features, plan_features, remove_run
from training.features.settings import FeatureSettings, Machine

TESTS = Path(__file__).parents[2]
LENGTHS = (70, 50, 30, 3, 1, 1, 60, 25, 130, 80, 2, 39, 17)
KILLS = (
    "write:1", "write:2", "write:5", "write:6", "write:4", "fsync:3", "ftruncate:3", "fsync:5", "replace:1", "unlink:1",
)  # fmt: skip
"""In the midst of the task, a shard's head, a mark, states behind a mark, and the mark of a whole shard; before that is
synced, before the next shard is opened, a shard's name is synced, the index is there, and what it makes useless goes.
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_answers(tmp_path_factory.mktemp("features") / "answers", LENGTHS)


@pytest.fixture(scope="module")
def whole(answers: Path, tiny_model: Path) -> Path:
    """Features of a run that nothing disturbed."""
    folder = answers.with_name("whole")
    run(answers, tiny_model, folder, rows=256)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def extract(answers: Path, model: Path, folder: Path, settings: FeatureSettings = SETTINGS):
    plan = plan_features([answers], model, settings, shard_bytes=SHARD_BYTES)
    return extract_features(plan, folder, Machine(threads=1), progress=False)


def test_a_run_that_is_killed_goes_on_without_loss_or_duplicates(
    whole: Path, answers: Path, tiny_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "killed"
    command = [sys.executable, "-m", "support.killed_features", *map(str, (answers, tiny_model, folder)), *KILLS]
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    killed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=190, check=False)
    assert killed.returncode == 0, killed.stderr
    assert len(contents(folder)) == len(contents(whole)) + 1
    run(answers, tiny_model, folder, rows=9)
    assert contents(folder) == contents(whole)
    FeatureSet(folder).check()


@pytest.mark.parametrize("rows", [5, 64])
def test_passes_may_be_of_any_size(whole: Path, answers: Path, tiny_model: Path, tmp_path: Path, rows: int) -> None:
    assert len(contents(whole)) > 3
    run(answers, tiny_model, tmp_path / "out", rows=rows)
    assert contents(tmp_path / "out") == contents(whole)


class _StoppedError(Exception):
    pass


@pytest.fixture
def half(answers: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose run was stopped in its second shard, behind a few marks."""
    kept = Progress.add

    def add(self: Progress, mark) -> None:
        kept(self, mark)
        if mark.shard == 1 and len(self.open) == 2:
            raise _StoppedError

    with monkeypatch.context() as patched:
        patched.setattr(Progress, "add", add)
        with pytest.raises(_StoppedError):
            run(answers, tiny_model, tmp_path / "half", rows=20)
    return tmp_path / "half"


@pytest.mark.parametrize("damage", ["zeros", "short", "torn mark", "none"])
def test_what_is_lost_with_the_power_is_computed_again(
    whole: Path, half: Path, answers: Path, tiny_model: Path, damage: str
) -> None:
    shard = half / "features-00001.safetensors"
    size = shard.stat().st_size
    if damage == "zeros":
        with shard.open("r+b") as stream:
            stream.seek(size // 2)
            stream.write(bytes(size // 2))
    elif damage == "short":
        os.truncate(shard, 100)
    elif damage == "torn mark":
        with (half / PROGRESS).open("ab") as stream:
            stream.write(b'{"shard": 1, "sequ')
    outcome = extract(answers, tiny_model, half)
    assert contents(half) == contents(whole)
    assert 0 < outcome.tokens < sum(LENGTHS)


def test_marks_that_are_set_anew_are_found_again(half: Path) -> None:
    """A run goes on in front of marks whose states were lost, and sets others between them."""
    shard = half / "features-00001.safetensors"
    data = shard.read_bytes()
    sizes = (3000, 9000, 5000, 12_000)
    marks = [Mark(1, number, size, sha256(data[:size]).hexdigest()) for number, size in enumerate(sizes)]
    for kept, expected in ((len(data), 3), (11_999, 1), (8999, 2), (4999, 0)):
        os.truncate(shard, kept)
        found, digest = last_whole(shard, marks)
        assert found == marks[expected]
        assert digest.hexdigest() == marks[expected].sha256
    os.truncate(shard, 100)
    assert last_whole(shard, marks)[0] is None


def test_a_whole_shard_that_is_gone_is_told(half: Path, answers: Path, tiny_model: Path) -> None:
    (half / "features-00000.safetensors").unlink()
    with pytest.raises(DamagedError, match="features-00000"):
        extract(answers, tiny_model, half)
    remove_run(half)
    assert extract(answers, tiny_model, half).tokens == sum(LENGTHS)


def test_a_folder_serves_one_run(whole: Path, half: Path, answers: Path, tiny_model: Path) -> None:
    assert extract(answers, tiny_model, whole).tokens == 0
    for folder in (whole, half):
        with pytest.raises(MismatchError, match="another boundaries"):
            extract(answers, tiny_model, folder, FeatureSettings((1, 2)))
        with pytest.raises(MismatchError, match="another fingerprint, settings, texts"):
            extract(answers, tiny_model, folder, FeatureSettings((1, 3), max_tokens=60))
    with sole_user(half), pytest.raises(MismatchError, match="in use"):
        extract(answers, tiny_model, half)


def test_a_target_with_other_weights_is_another(
    half: Path, answers: Path, tiny_model: Path, tiny_draft_model: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(tiny_model, tmp_path / "copy")
    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (copy / "model.safetensors").write_bytes(weights)
    with pytest.raises(MismatchError, match="another fingerprint, model"):
        extract(answers, copy, half)


def test_a_disk_that_is_too_small_is_told_before_anything_is_computed(
    answers: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Path
) -> None:
    plan = plan_features([answers], tiny_model, SETTINGS, shard_bytes=SHARD_BYTES)
    room = plan.room(tmp_path / "not" / "there")
    assert room.needed == sum(path.stat().st_size for path in whole.glob("*.safetensors"))
    for free, suffices in ((room.needed, True), (room.needed - 1, False)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _place, free=free: SimpleNamespace(free=free))
        assert plan.room(tmp_path).suffices == suffices
    with pytest.raises(NoRoomError, match=r"not enough disk: 258.8 KiB in 5 shards, .* free"):
        extract(answers, tiny_model, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
