from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.inflate.__main__ import main
from benchmarks.inflate.quantised import QuantisedTensors
from benchmarks.inflate.shape import Shape
from benchmarks.inflate.shards import WRITERS, NoRoomError, check_room, write_weights
from benchmarks.inflate.tensors import RandomModel
from slipstream_kernels.models.checkpoint.quantisation.round_to_nearest import RoundedFormat

SHAPE = Shape(128, 2, 4, 2, 32, 160, 600, 512)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_more_files_than_writers_hold_all_tensors(tmp_path: Path, device: str) -> None:
    tensors = {f"t{i}": torch.full((3, 5), i, dtype=torch.bfloat16, device=device) for i in range(3 * WRITERS + 1)}
    tensors["turned"] = torch.arange(12.0, device=device).view(3, 4).t()
    write_weights(iter(tensors.items()), tmp_path, shard_bytes=60)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    files = sorted({*index["weight_map"].values()})
    assert files == sorted(path.name for path in tmp_path.glob("*.safetensors")) and len(files) > WRITERS
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors.values())
    for file in files:
        for name, tensor in load_file(tmp_path / file).items():
            assert index["weight_map"][name] == file and tensor.equal(tensors.pop(name).cpu())
    assert not tensors


def test_a_file_that_cannot_be_written_ends_it(tmp_path: Path) -> None:
    (tmp_path / "model-00002.safetensors").mkdir()
    tensors = ((f"t{i}", torch.zeros(8)) for i in range(20))
    with pytest.raises(OSError, match=r"model-00002\.safetensors"):
        write_weights(tensors, tmp_path, shard_bytes=32)
    assert not (tmp_path / "model.safetensors.index.json").exists()


@pytest.mark.parametrize("form", [RoundedFormat("fp8"), RoundedFormat("w4a16", 32)])
def test_bytes_are_known_before(tiny_model: Path, form: RoundedFormat) -> None:
    tensors = QuantisedTensors(RandomModel(tiny_model, SHAPE), form)
    assert tensors.nbytes == sum(tensor.nbytes for _, tensor in tensors.stored())


def test_a_disk_without_room_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=64 << 30))
    out = tmp_path / "out"
    assert main([str(out), "--random", "--shape", "llama-4-scout", "--format", "fp8"]) == 1
    assert f"{out}: the weights take 109.9 GB, and 68.7 GB are free" in capsys.readouterr().err
    assert not list(out.iterdir())


def test_weights_that_are_overwritten_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(NoRoomError):
        check_room(tmp_path, 5000)
    (tmp_path / "model-00001.safetensors").write_bytes(bytes(8192))
    check_room(tmp_path, 5000)
