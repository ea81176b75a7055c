"""Several folders are one source, in the order they are named in."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from support.features import write_answers
from training.common.atomic_files import MismatchError
from training.features.concatenated import JoinedFeatures
from training.features.dataset import INDEX, FeatureSet
from training.features.run import extract_features, plan_features
from training.features.settings import FeatureSettings, Machine

LENGTHS = ((6, 20, 3), (9, 5))


@pytest.fixture(scope="module")
def folders(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("joined")
    for name, lengths in zip("ab", LENGTHS, strict=True):
        plan = plan_features([write_answers(root / f"answers-{name}", lengths)], tiny_model, FeatureSettings((1,)))
        extract_features(plan, root / name, Machine(threads=1, rows=32), progress=False)
    return [root / name for name in "ab"]


def test_sequences_of_one_follow_those_of_the_other(folders: list[Path]) -> None:
    sets = [FeatureSet(folder) for folder in folders]
    joined = JoinedFeatures(sets)
    assert (len(joined), list(joined.lengths), joined.boundaries) == (5, [6, 20, 3, 9, 5], (1,))
    order = [4, 0, 3, 2]
    for index, found in zip(order, joined.batch(order), strict=True):
        alone = sets[0][index] if index < 3 else sets[1][index - 3]
        assert found.id == alone.id == joined.tokens(index).id and torch.equal(found.states, alone.states)
        assert torch.equal(joined.tokens(index).token_ids, alone.token_ids)
    for index in (-1, 5):
        with pytest.raises(IndexError, match="there are 5"):
            joined[index]


def test_fingerprints_tell_which_and_in_what_order(folders: list[Path]) -> None:
    a, b = (FeatureSet(folder) for folder in folders)
    assert JoinedFeatures([a]).fingerprint == a.fingerprint
    assert len({JoinedFeatures(sets).fingerprint for sets in ([a], [b], [a, b], [b, a])}) == 4


@pytest.mark.parametrize(("name", "other"), [("boundaries", [2]), ("model", {"fingerprint": "another"})])
def test_sets_that_do_not_go_together_are_refused(
    folders: list[Path], name: str, other: object, tmp_path: Path
) -> None:
    shutil.copytree(folders[1], tmp_path / "b")
    index = json.loads((tmp_path / "b" / INDEX).read_bytes())
    (tmp_path / "b" / INDEX).write_text(json.dumps(index | {name: other}))
    with pytest.raises(MismatchError, match=f"b has another {name}"):
        JoinedFeatures([FeatureSet(folders[0]), FeatureSet(tmp_path / "b")])
