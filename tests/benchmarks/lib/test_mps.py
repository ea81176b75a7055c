"""The daemon is a script that notes its environment: what it and its clients see of the GPUs."""

import os
from pathlib import Path

import pytest

from benchmarks.lib.mps import CONTROL, mps_server

UUIDS = ("GPU-1b5b4e0a-0000-0000-0000-000000000001",)
SCRIPT = """#!/bin/sh
if [ "$1" = -d ]; then env > "$NOTED.started"; else cat > "$NOTED.told"; env > "$NOTED.ended"; fi
"""


@pytest.fixture
def noted(tmp_path, monkeypatch):
    """Where the script has noted what."""
    script = tmp_path / CONTROL
    script.write_text(SCRIPT)
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("NOTED", str(tmp_path / "noted"))
    return lambda name: dict(line.partition("=")[::2] for line in (tmp_path / f"noted.{name}").read_text().splitlines())


def started(noted):
    """The clients' environment, and the daemon's."""
    with mps_server(lambda: UUIDS) as clients:
        assert Path(clients["CUDA_MPS_PIPE_DIRECTORY"]).is_dir()
    return clients, noted("started")


def test_a_gpu_chosen_by_number_is_the_same_one_to_the_daemon_and_its_clients(noted, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    clients, daemon = started(noted)
    assert clients["CUDA_VISIBLE_DEVICES"] == daemon["CUDA_VISIBLE_DEVICES"] == UUIDS[0]
    assert daemon.items() >= clients.items()


@pytest.mark.parametrize("chosen", ["GPU-1b5b4e0a", None])
def test_gpus_that_are_not_chosen_by_number_stay_as_the_caller_has_them(noted, monkeypatch, chosen):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if chosen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    clients, daemon = started(noted)
    assert "CUDA_VISIBLE_DEVICES" not in clients
    assert daemon.get("CUDA_VISIBLE_DEVICES") == chosen


def test_the_daemon_is_told_to_quit_in_the_folders_it_was_started_in(noted):
    clients, daemon = started(noted)
    assert noted("told") == {"quit": ""}
    assert noted("ended")["CUDA_MPS_PIPE_DIRECTORY"] == daemon["CUDA_MPS_PIPE_DIRECTORY"]
    assert not Path(clients["CUDA_MPS_PIPE_DIRECTORY"]).exists()
