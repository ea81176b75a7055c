"""Features on disk, and the same ones without a disk."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from support.features import conversation, states_of, write_answers
from training.answers.dataset import AnswerSet, write_set
from training.common.atomic_files import DamagedError
from training.features.dataset import FeatureSet
from training.features.online import OnlineFeatures
from training.features.run import extract_features, plan_features
from training.features.settings import FeatureSettings, Machine
from training.features.source import FeatureSource
from training.recorded.rendering import Rendering

SETTINGS = FeatureSettings((3, 1))
MACHINE = Machine(threads=1, rows=32)
LENGTHS = (20, 1, 50, 7, 64)


@pytest.fixture(scope="module")
def folder(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards, with the answers beside them."""
    root = tmp_path_factory.mktemp("dataset")
    plan = plan_features([write_answers(root / "answers", LENGTHS)], tiny_model, SETTINGS, shard_bytes=50_000)
    extract_features(plan, root / "features", MACHINE, progress=False)
    return root / "features"


@pytest.fixture(scope="module")
def online(folder: Path, tiny_model: Path) -> OnlineFeatures:
    return OnlineFeatures([folder.with_name("answers")], tiny_model, SETTINGS, MACHINE)


@pytest.mark.parametrize("kind", ["disk", "online"])
def test_sequences_come_in_any_order(folder: Path, tiny_model: Path, online: OnlineFeatures, kind: str) -> None:
    source: FeatureSource = FeatureSet(folder) if kind == "disk" else online
    model = CausalLM.load(tiny_model, threads=1)
    answers = list(AnswerSet(folder.with_name("answers")).sequences())
    assert (len(source), list(source.lengths), source.boundaries, source.hidden_size) == (5, list(LENGTHS), (3, 1), 128)
    order = [4, 0, 3, 3, 1, 2]
    for index, found in zip(order, source.batch(order), strict=True):
        known, alone = source.tokens(index), source[index]
        expected = torch.from_numpy(states_of(model, answers[index].token_ids.tolist(), (3, 1)))
        for states in (found.states, alone.states):
            assert (states.dtype, states.shape) == (torch.bfloat16, (LENGTHS[index], 256))
            assert torch.equal(states.view(torch.int16), expected.view(torch.int16))
        for each in (found, known):
            assert (each.id, each.part, each.category) == (answers[index].id, 0, "sums")
            assert each.token_ids.dtype == torch.int64
            assert each.token_ids.tolist() == answers[index].token_ids.tolist()
            assert each.produced.tolist() == answers[index].produced.tolist()
    assert source.batch([]) == []
    for index in (-1, 5):
        with pytest.raises(IndexError, match="there are 5"):
            source[index]


def test_fingerprints_tell_contents(folder: Path, tiny_model: Path, online: OnlineFeatures) -> None:
    assert FeatureSet(folder).fingerprint == online.fingerprint
    for settings in (FeatureSettings((1, 3)), FeatureSettings((3, 1), max_tokens=60)):
        other = OnlineFeatures([folder.with_name("answers")], tiny_model, settings, MACHINE)
        assert other.fingerprint != online.fingerprint


def test_any_reader_of_safetensors_reads_them(folder: Path) -> None:
    tensors = [load_file(path) for path in sorted(folder.glob("*.safetensors"))]
    source = FeatureSet(folder)
    assert len(tensors) == 2
    assert [tensor.dtype for tensor in tensors[0].values()].count(torch.bfloat16) == 1
    states = torch.cat([source[index].states for index in range(5)])
    assert torch.equal(torch.cat([each["states"] for each in tensors]).view(torch.int16), states.view(torch.int16))
    assert torch.cat([each["token_ids"] for each in tensors]).tolist() == [
        token for index in range(5) for token in source.tokens(index).token_ids.tolist()
    ]


def test_damage_is_told(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    FeatureSet(copy, model=tmp_path).check()
    shard = copy / "features-00001.safetensors"
    data = bytearray(shard.read_bytes())
    data[-200] ^= 4
    shard.write_bytes(data)
    with pytest.raises(DamagedError, match="features-00001"):
        FeatureSet(copy).check()
    shard.write_bytes(data[:-1])
    with pytest.raises(DamagedError, match="features-00001"):
        FeatureSet(copy)
    shard.write_bytes(bytes(len(data)))
    with pytest.raises(DamagedError, match="features-00001"):
        FeatureSet(copy)
    (copy / "index.json").write_text(json.dumps({"format": "slipstream-features", "version": 9}))
    with pytest.raises(DamagedError, match="version 1"):
        FeatureSet(copy)
    (copy / "index.json").unlink()
    with pytest.raises(DamagedError, match="not complete"):
        FeatureSet(copy)


def test_names_of_any_kind_come_back(tiny_model: Path, tmp_path: Path) -> None:
    """Categories are the prompts' and may hold what is no text."""
    write_set(tmp_path, [conversation(1, [5, 6], [5, 7], category='\ud800 "ä'), conversation(2, [8])], {}, 10)
    plan = plan_features([tmp_path], tiny_model, SETTINGS)
    extract_features(plan, tmp_path / "out", MACHINE, progress=False)
    found = [source.tokens(index) for source in [FeatureSet(tmp_path / "out")] for index in range(3)]
    assert [(each.part, each.category) for each in found] == [(0, '\ud800 "ä'), (1, '\ud800 "ä'), (0, "sums")]


def test_what_others_wrote_is_known_on_disk_and_without(tiny_model: Path, tmp_path: Path) -> None:
    written = Rendering(tiny_model, ModelConfig.from_folder(tiny_model).eos_token_ids).document()
    facts = {"recorded": True, "settings": {}, "model": written}
    own, others = write_answers(tmp_path / "own", (5, 4)), tmp_path / "others"
    others.mkdir()
    write_set(others, [conversation(9, [5, 6, 7]), conversation(8, [7, 6])], facts, 10)
    folders = [own, others]
    extract_features(plan_features(folders, tiny_model, SETTINGS), tmp_path / "out", MACHINE, progress=False)
    for source in (FeatureSet(tmp_path / "out"), OnlineFeatures(folders, tiny_model, SETTINGS, MACHINE)):
        flags = [False, False, True, True]
        assert [source.tokens(index).recorded for index in range(4)] == flags
        assert [each.recorded for each in source.batch(range(4))] == flags
