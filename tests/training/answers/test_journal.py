"""The journal of a run of answers."""

from __future__ import annotations

import pytest

from training.answers.journal import Journal
from training.common.atomic_files import DamagedError, MismatchError

TASK = {"settings": {"seed": 1}, "inputs": []}
KEYS = [f"{number:032x}" for number in range(4)]


def record(key, failure=""):
    return {"id": key, "failure": failure, "sequences": [], "text": "ü\u2028\ud800"}


def filled(path):
    journal = Journal(path, TASK)
    for key in KEYS[:3]:
        journal.add(record(key, "no" if key == KEYS[1] else ""))
    journal.close()
    return path.read_bytes()


def test_what_was_added_is_there_again(tmp_path):
    filled(tmp_path / "journal")
    journal = Journal(tmp_path / "journal", TASK)
    assert len(journal) == 3
    assert [key in journal for key in KEYS] == [True, True, True, False]
    assert journal.read(KEYS[2]) == record(KEYS[2])
    assert journal.failures == 1
    with pytest.raises(KeyError):
        journal.read(KEYS[3])


def test_cut_anywhere_it_keeps_all_whole_lines_and_takes_more(tmp_path):
    whole = filled(tmp_path / "journal")
    ends = [index + 1 for index, byte in enumerate(whole) if byte == ord("\n")]
    for size in range(len(whole) + 1):
        path = tmp_path / "cut"
        path.write_bytes(whole[:size])
        journal = Journal(path, TASK)
        assert len(journal) == max(0, sum(end <= size for end in ends) - 1)
        journal.add(record(KEYS[3]))
        journal.close()
        again = Journal(path, TASK)
        assert again.read(KEYS[3]) == record(KEYS[3])
        again.close()


def test_damage_before_the_end_is_told(tmp_path):
    whole = filled(tmp_path / "journal")
    first = whole.index(b"\n") + 1
    (tmp_path / "journal").write_bytes(whole[:first] + b"x" + whole[first + 1 :])
    with pytest.raises(DamagedError, match=f"byte {first}"):
        Journal(tmp_path / "journal", TASK)


def test_another_task_is_refused(tmp_path):
    filled(tmp_path / "journal")
    with pytest.raises(MismatchError, match="another settings"):
        Journal(tmp_path / "journal", TASK | {"settings": {"seed": 2}})


def test_failures_can_be_tried_again_and_the_last_word_counts(tmp_path):
    filled(tmp_path / "journal")
    journal = Journal(tmp_path / "journal", TASK, retry_failed=True)
    assert KEYS[1] not in journal
    assert journal.failures == 0
    journal.add(record(KEYS[1]))
    journal.close()
    journal = Journal(tmp_path / "journal", TASK)
    assert journal.read(KEYS[1]) == record(KEYS[1])
    assert journal.failures == 0
