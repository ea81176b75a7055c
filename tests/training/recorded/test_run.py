"""The stage as a whole: a set like that of `answers`, the same to the byte, refused by other targets."""

from __future__ import annotations

import json
import lzma
import shutil
from pathlib import Path

import pytest

from training.answers.dataset import INDEX, AnswerSet
from training.common.atomic_files import MismatchError
from training.recorded.rendering import Rendering, check_rendering
from training.recorded.run import DUPLICATE, remove_run, write_recordings
from training.recorded.settings import RecordingSettings

COUNT = 700


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("recorded")
    lines = [json.dumps({"question": f"{n}+1?", "answer": f"{n + 1}", "source": "sums"}) for n in range(COUNT)]
    lines[7] = lines[3]
    lines[9] = "{torn"
    (folder / "a.jsonl.xz").write_bytes(lzma.compress("\n".join(lines).encode()))
    (folder / "b.jsonl").write_text(json.dumps({"text": "One rider.", "source": "prose"}))
    return [folder / "a.jsonl.xz", folder / "b.jsonl"]


def write(inputs, folder, model, *, limit=0, **options):
    settings, rendering = RecordingSettings(64, limit), Rendering(model, (3, 2))
    return write_recordings(inputs, folder, rendering, 8192, settings, progress=False, shard_sequences=400, **options)


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_files_depend_neither_on_workers_nor_on_interruptions(inputs, demo_model, tmp_path):
    index = write(inputs, tmp_path / "one", demo_model).index
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "answers-00007.jsonl").write_text("left by a run that was killed")
    write(inputs, tmp_path / "two", demo_model, workers=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert [shard["sequences"] for shard in index["shards"]] == [400, COUNT - 401]
    assert index["summary"]["dropped"] == {DUPLICATE: 1, "not JSON": 1}
    assert {name: each["sequences"] for name, each in index["summary"]["categories"].items()} == {
        "prose": 1, "sums": COUNT - 2,
    }  # fmt: skip


def test_the_set_is_read_like_answers_and_says_what_it_is(inputs, demo_model, tmp_path):
    write(inputs, tmp_path, demo_model)
    answers = AnswerSet(tmp_path)
    answers.check()
    sequences = list(answers.sequences())
    assert answers.recorded
    assert all(each.recorded for each in sequences)
    assert len({each.id for each in sequences}) == len(answers)
    assert sequences[0].token_ids[sequences[0].produced][-1] == 3
    assert sequences[-1].produced.tolist() == [False, *[True] * (len(sequences[-1].token_ids) - 1)]


def test_a_complete_run_is_not_done_again_and_another_is_refused(inputs, demo_model, tmp_path):
    first = write(inputs[1:], tmp_path, demo_model)
    assert write(inputs[1:], tmp_path, demo_model).seconds == 0 < first.seconds
    with pytest.raises(MismatchError, match="another settings"):
        write(inputs[1:], tmp_path, demo_model, limit=5)
    remove_run(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_limit_takes_lines_from_everywhere(inputs, demo_model, tmp_path):
    summary = write(inputs, tmp_path / "some", demo_model, limit=7).index["summary"]
    assert summary["lines"] == 7
    origins = [int(each["origin"].split(":")[1]) for each in AnswerSet(tmp_path / "some").records()]
    assert origins[:-1] == [100 * n + 101 for n in range(6)]
    assert write(inputs[1:], tmp_path / "all", demo_model, limit=7).index["summary"]["lines"] == 1


def test_another_template_or_tokenizer_or_end_of_turn_is_told(inputs, demo_model, tmp_path):
    write(inputs[1:], tmp_path, demo_model)
    recorded = json.loads((tmp_path / INDEX).read_text())["model"]
    check_rendering(recorded, Rendering(demo_model, (3, 2)), tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(demo_model / name, other)
    check_rendering(recorded, Rendering(other, (3, 2)), tmp_path)
    (other / "chat_template.jinja").write_text("another")
    for wrong in (Rendering(other, (3, 2)), Rendering(demo_model, (3,))):
        with pytest.raises(MismatchError, match="another tokenizer, chat template or end of turn"):
            check_rendering(recorded, wrong, tmp_path)
