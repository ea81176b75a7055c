"""Folders of models as a container sees them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.services.folder_check import named_folders, obstacles

OTHER_USER = 54321
CHECK = """
import os, sys
from pathlib import Path
from launcher.services.folder_check import obstacles
os.chdir(sys.argv[2])
os.setgid(int(sys.argv[1]))
os.setuid(int(sys.argv[1]))
print(*obstacles(Path("model")), sep="\\n")
"""


def snapshot(root: Path) -> Path:
    """A model as a Hugging Face cache has it."""
    blobs, folder = root / "blobs", root / "snapshots" / "abc"
    blobs.mkdir()
    folder.mkdir(parents=True)
    (blobs / "1234").write_text("{}")
    (folder / "config.json").symlink_to(Path("..", "..", "blobs", "1234"))
    return folder


def test_links_of_a_cache_that_is_there_lead_somewhere(tmp_path):
    assert list(obstacles(snapshot(tmp_path))) == []


def test_a_snapshot_without_its_cache_is_explained(tmp_path):
    folder = snapshot(tmp_path).rename(tmp_path / "model")
    (said,) = obstacles(folder)
    assert said.startswith(f"{folder}/config.json: leads to ../../blobs/1234, which is not there")
    assert "mount the model's whole folder" in said


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() != 0, reason="needs root, to be another user")
@pytest.mark.parametrize(("folder_mode", "file_mode"), [(0o700, 0o600), (0o755, 0o600), (0o755, 0o644)])
def test_files_of_another_user_are_named(tmp_path, folder_mode, file_mode):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "config.json").chmod(file_mode)
    folder.chmod(folder_mode)
    tmp_path.chmod(0o755)
    said = subprocess.run(
        [sys.executable, "-c", CHECK, str(OTHER_USER), str(tmp_path)],
        capture_output=True, text=True, check=True, timeout=60,
    ).stdout.strip()  # fmt: skip
    if folder_mode == 0o700:
        assert said == f"model: Permission denied: user {OTHER_USER} may not read the folder, which is user 0's"
    elif file_mode == 0o600:
        assert said == f"model/config.json: user {OTHER_USER} may not read it, it is user 0's"
    else:
        assert said == ""


def test_folders_are_found_in_a_command(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    hosted = f"--proposers=draft-model:{two},eagle3:{two}:target={one},ngram"
    command = ["--verify=verify:50052", f"--model={one}", hosted]
    assert named_folders([*command, str(tmp_path / "none")]) == [one, two]
