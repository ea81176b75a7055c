"""Answers on disk."""

from __future__ import annotations

import json

import numpy as np
import pytest

from training.answers.dataset import INDEX, AnswerSet, write_set
from training.common.atomic_files import DamagedError


def conversation(number, parts=1):
    sequences = []
    for part in range(parts):
        token_ids = list(range(number, number + 6 + part))
        sequences.append({"token_ids": token_ids, "produced": [[2, 4], [5, 6 + part]], "turns": [], "messages": []})
    return {"id": f"{number:032x}", "origin": "file:1", "category": "sums", "sequences": sequences}


RECORDS = [conversation(0), conversation(10, parts=2), conversation(20, parts=0), conversation(30)]


def write(folder, shard_sequences=3):
    return write_set(folder, RECORDS, {"summary": {}}, shard_sequences)


def test_sequences_come_back_in_order_with_their_masks(tmp_path):
    write(tmp_path)
    answers = AnswerSet(tmp_path)
    answers.check()
    sequences = list(answers.sequences())
    assert len(sequences) == len(answers) == 4
    assert [(int(each.id, 16), each.part) for each in sequences] == [(0, 0), (10, 0), (10, 1), (30, 0)]
    assert sequences[2].token_ids.tolist() == list(range(10, 17))
    assert sequences[2].token_ids.dtype == np.int32
    assert sequences[2].produced.tolist() == [False, False, True, True, False, True, True]
    assert sequences[0].category == "sums"


@pytest.mark.parametrize("first", range(6))
def test_reading_can_begin_anywhere(tmp_path, first):
    write(tmp_path, shard_sequences=2)
    answers = AnswerSet(tmp_path)
    assert [each["id"] for each in answers.records(first)] == [each["id"] for each in answers.records()][first:]


def test_the_index_tells_what_shards_hold(tmp_path):
    index = write(tmp_path)
    assert [shard["sequences"] for shard in index["shards"]] == [3, 1]
    assert [shard["tokens"] for shard in index["shards"]] == [19, 6]
    assert [shard["produced"] for shard in index["shards"]] == [10, 3]
    assert index == json.loads((tmp_path / INDEX).read_text())


def test_a_changed_shard_is_told(tmp_path):
    shard = tmp_path / write(tmp_path)["shards"][1]["file"]
    shard.write_bytes(shard.read_bytes().replace(b"30", b"31"))
    with pytest.raises(DamagedError, match="answers-00001"):
        AnswerSet(tmp_path).check()


def test_an_incomplete_or_foreign_folder_is_told(tmp_path):
    with pytest.raises(DamagedError, match="not complete"):
        AnswerSet(tmp_path)
    (tmp_path / INDEX).write_text(json.dumps({"format": "slipstream-answers", "version": 99}))
    with pytest.raises(DamagedError, match="version 1"):
        AnswerSet(tmp_path)


def test_writing_again_leaves_nothing_of_before(tmp_path):
    write(tmp_path, shard_sequences=1)
    write(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["answers-00000.jsonl", "answers-00001.jsonl", INDEX]
