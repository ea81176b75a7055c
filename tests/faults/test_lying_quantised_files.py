"""Quantised checkpoints that are corrupt, cut off or contradict themselves are refused, by name, as they are loaded."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from slipstream_kernels.models.checkpoint.model_config import CheckpointError, ModelConfig
from slipstream_kernels.models.checkpoint.weight_loader import load_weights
from slipstream_kernels.ops.quantised_weight import QuantisedWeight
from support.lying_quantised import FOLDERS, mutations, write

_EACH = 20
"""Mutations of a folder at least; of all there are more than 200."""


def complaint(folder: Path) -> str:
    """What a start says of a folder; empty: it would serve it."""
    try:
        load_weights(folder, ModelConfig.from_folder(folder))
    except CheckpointError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", FOLDERS)
def test_every_mutation_is_refused_by_name(name: str, tmp_path: Path) -> None:
    folder = write(name, tmp_path)
    weights = load_weights(folder, ModelConfig.from_folder(folder))
    assert sum(isinstance(weight, QuantisedWeight) for weight in weights.values()) >= 7
    titles = []
    for mutation in mutations(folder):
        changed = Path(shutil.copytree(folder, tmp_path / "changed"))
        mutation.change(changed)
        said = complaint(changed)
        assert any(each in said for each in mutation.names) and "\n" not in said, (mutation.title, said)
        titles.append(mutation.title)
        shutil.rmtree(changed)
    assert len(set(titles)) == len(titles) >= _EACH
    assert _EACH * len(FOLDERS) > 200
