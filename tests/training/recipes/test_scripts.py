"""What recipes do with processes, and with arguments that make no sense."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

RECIPES = Path(__file__).parents[3] / "training" / "recipes"
BUSY = """
. "$RECIPES/processes.sh"
lane() { sleep 300 & timeout --foreground 300 sleep 301; }
lane & sleep 302 &
step short true
"""


def bash(script, folder, *arguments):
    (folder / "log").mkdir(exist_ok=True)
    environment = os.environ | {"PYTHON": sys.executable, "OUT": str(folder), "RECIPES": str(RECIPES)}
    return subprocess.Popen(
        ["bash", *(["-c", script, "recipe"] if isinstance(script, str) else [script]), *map(str, arguments)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def in_session(session):
    """Processes of a session that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, its_session = stat.read_text().rsplit(")", 1)[1].split()[:4]
        except OSError:
            continue
        if int(its_session) == session and state != "Z":
            found.append(stat.parent.name)
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize(
    ("end", "status", "told"),
    [
        ("step failing bash -c 'echo why; exit 7'", 1, "why\nrecipe: failing failed; its log is"),
        ('ready 60 "$(bash -c "echo \\$\\$")" 127.0.0.1:1', 1, "has ended"),
        ("step long sleep 303", -signal.SIGTERM, ""),
    ],
)
def test_nothing_is_left_however_a_recipe_ends(tmp_path, end, status, told):
    recipe = bash(BUSY + end, tmp_path)
    if status < 0:
        deadline = time.monotonic() + 30
        while len(in_session(recipe.pid)) < 8 and time.monotonic() < deadline:
            time.sleep(0.02)
        recipe.terminate()
    errors = recipe.communicate(timeout=60)[1]
    assert recipe.returncode == (status if status > 0 else 128 - status)
    assert told in errors
    assert in_session(recipe.pid) == []


def test_arguments_that_make_no_sense_are_told(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    none, full, out = (tmp_path / name for name in ("none", "full", "out"))
    asked = [
        ("eagle3_one_gpu.sh", (), 2, "PROMPTS OUT"),
        ("eagle3_one_gpu.sh", (none, out), 1, f"there are no prompts at {none}"),
        ("eagle3_one_gpu.sh", (tmp_path, full), 1, f"{full} is not empty"),
        ("families.sh", (none,), 2, "FEATURES HELDOUT OUT"),
        ("families.sh", (full, none, out), 1, f"there are no features at {none}"),
    ]
    for script, arguments, status, told in asked:
        recipe = bash(RECIPES / script, tmp_path, *arguments)
        errors = recipe.communicate(timeout=60)[1]
        assert (recipe.returncode, told in errors) == (status, True), errors
