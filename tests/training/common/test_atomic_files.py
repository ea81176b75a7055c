"""Files that survive a kill."""

from __future__ import annotations

import hashlib

import pytest

from training.common.atomic_files import AppendFile, DamagedError, sha256_of, write_whole


def test_what_was_not_counted_is_cut_off(tmp_path):
    path = tmp_path / "file"
    with AppendFile(path, 0) as file:
        file.append(b"one\n")
        counted = file.size
        file.append(b"torn")
    with AppendFile(path, counted) as file:
        file.append(b"two\n")
        file.sync()
    assert path.read_bytes() == b"one\ntwo\n"


def test_a_file_that_lost_bytes_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"12")
    with pytest.raises(DamagedError, match="has 2 bytes where 3"):
        AppendFile(tmp_path / "file", 3)


def test_a_whole_file_replaces_another_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "file"
    (tmp_path / "file.part").write_bytes(b"of a run that was killed, and longer")
    path.write_bytes(b"old")
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]
    assert sha256_of(path) == hashlib.sha256(b"new").hexdigest()
