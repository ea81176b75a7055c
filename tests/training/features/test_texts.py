"""What is learned from of a set of answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from support.features import conversation
from training.answers.dataset import write_set
from training.common.atomic_files import DamagedError, MismatchError
from training.features.settings import FeatureSettings
from training.features.texts import read_texts
from training.recorded.rendering import Rendering

RECORDS = [
    conversation(1, [5, 6, 7, 8], [5, 6, 9], produced=2),
    conversation(2, [5], produced=0),
    conversation(3, list(range(10, 40)), category="\ud800", produced=25),
    conversation(4, list(range(10, 40)), produced=5),
]


@pytest.fixture
def config(tiny_model: Path) -> ModelConfig:
    return ModelConfig.from_folder(tiny_model)


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    write_set(tmp_path, RECORDS, {"summary": {}, "model": {"vocab_size": 512}}, 10)
    return tmp_path


def read(folder: Path, config: ModelConfig, **settings):
    return read_texts([folder], folder, config, FeatureSettings((1,), **settings).resolved(config))


def test_sequences_without_the_targets_tokens_are_left_out(answers: Path, config: ModelConfig) -> None:
    texts = read(answers, config)
    assert texts.lengths == [4, 3, 30, 30]
    assert texts.omitted == {"nothing_produced": 1}
    second = texts.tokens(1)
    assert (int(second.id, 16), second.part, second.category) == (1, 1, "sums")
    assert second.token_ids.tolist() == texts.ids(1).tolist() == [5, 6, 9]
    assert second.produced.tolist() == [False, True, True]
    for index in (-1, 4):
        with pytest.raises(IndexError, match="there are 4"):
            texts.tokens(index)


def test_folders_follow_one_another(answers: Path, config: ModelConfig) -> None:
    texts = read_texts([answers, answers], answers, config, FeatureSettings((1,)).resolved(config))
    assert texts.lengths == 2 * [4, 3, 30, 30]
    assert texts.omitted == {"nothing_produced": 2}
    assert texts.digest() != read(answers, config).digest()


@pytest.mark.parametrize(
    ("longer", "lengths", "omitted"),
    [
        ("cut", [4, 3, 10], {"cut": 2, "nothing_produced": 2}),
        ("drop", [4, 3], {"nothing_produced": 1, "too_long": 2}),
    ],
)
def test_long_sequences_are_cut_or_dropped_and_counted(
    answers: Path, config: ModelConfig, longer: str, lengths: list[int], omitted: dict[str, int]
) -> None:
    texts = read(answers, config, max_tokens=10, longer=longer)
    assert (texts.lengths, texts.omitted) == (lengths, omitted)


def test_everything_that_training_sees_is_in_the_digest(answers: Path, config: ModelConfig) -> None:
    texts = read(answers, config)
    changed = [
        replace(texts, names=(("x", 0, "sums"), *texts.names[1:])),
        replace(texts, token_ids=texts.token_ids[::-1]),
        replace(texts, produced=~texts.produced),
        replace(texts, offsets=texts.offsets.clip(max=36)),
        replace(texts, recorded=~texts.recorded),
    ]
    assert len({each.digest() for each in (texts, *changed)}) == 6


def test_answers_of_another_model_are_refused(answers: Path, config: ModelConfig, tmp_path: Path) -> None:
    with pytest.raises(MismatchError, match="a vocabulary of 512, this one of 600"):
        read(answers, replace(config, vocab_size=600))
    write_set(tmp_path, [conversation(1, [5, 512])], {"summary": {}}, 10)
    with pytest.raises(MismatchError, match="has token 512, the model's vocabulary has 512"):
        read(tmp_path, config)


def test_recordings_stand_beside_answers_if_they_were_written_for_this_model(
    answers: Path, config: ModelConfig, tmp_path: Path
) -> None:
    recorded = tmp_path / "recorded"
    recorded.mkdir()
    written = Rendering(answers, config.eos_token_ids).document()
    write_set(recorded, [conversation(5, [5, 6])], {"recorded": True, "model": {"vocab_size": 512} | written}, 10)
    texts = read_texts([answers, recorded], answers, config, FeatureSettings((1,)).resolved(config))
    assert texts.recorded.tolist() == [False] * 4 + [True]
    assert [texts.tokens(index).recorded for index in (0, 4)] == [False, True]
    (answers / "tokenizer.json").write_text("another")
    with pytest.raises(MismatchError, match="another tokenizer, chat template"):
        read_texts([answers, recorded], answers, config, FeatureSettings((1,)).resolved(config))


def test_without_anything_to_learn_from_there_is_no_run(tmp_path: Path, config: ModelConfig) -> None:
    with pytest.raises(DamagedError, match="not complete"):
        read(tmp_path, config)
    write_set(tmp_path, [RECORDS[1]], {"summary": {}}, 10)
    with pytest.raises(ValueError, match=r"no sequence to learn from: .*nothing_produced"):
        read(tmp_path, config)
