from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import torch

from draft_service.heads.pickled import load_pickled
from slipstream_kernels.models.checkpoint.config_fields import CheckpointError


def test_what_torch_saves_is_read(tmp_path: Path) -> None:
    shared = torch.arange(6.0)
    torch.save({"a": shared, "b": shared.view(2, 3)}, tmp_path / "w")
    content = load_pickled(tmp_path / "w")
    assert torch.equal(content["b"], shared.view(2, 3))


@pytest.mark.parametrize("nest", [lambda tensor: tensor, lambda tensor: {"a": tensor}, lambda tensor: [tensor]])
def test_a_tensor_that_repeats_its_numbers_is_refused(nest, tmp_path: Path) -> None:
    torch.save(nest(torch.zeros(1).expand(10**9)), tmp_path / "w")
    with pytest.raises(CheckpointError, match=r"a tensor of shape \[1000000000\] has 4 bytes"):
        load_pickled(tmp_path / "w")


def test_a_compressed_archive_is_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(1 << 20)}, tmp_path / "w")
    with (
        zipfile.ZipFile(tmp_path / "w") as plain,
        zipfile.ZipFile(tmp_path / "packed", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    assert (tmp_path / "packed").stat().st_size < 1 << 16
    with pytest.raises(CheckpointError, match="a compressed member"):
        load_pickled(tmp_path / "packed")


def test_a_pointer_of_git_lfs_is_told_from_other_files(tmp_path: Path) -> None:
    (tmp_path / "w").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1f\nsize 7\n")
    with pytest.raises(CheckpointError, match="a git-lfs pointer stands here"):
        load_pickled(tmp_path / "w")


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(b"nonsense")
    with pytest.raises(CheckpointError, match="not in torch's zip format"):
        load_pickled(tmp_path / "w")
    with pytest.raises(CheckpointError, match="not a regular file"):
        load_pickled(tmp_path)
