from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from launcher.cli.app import app
from slipstream.extras import MissingExtraError


@pytest.mark.parametrize("command", [["up"], ["status"], ["scale", "2"], ["drain", "1"], ["down"]])
def test_without_ray_each_command_names_the_extra(command, monkeypatch):
    monkeypatch.setattr("slipstream.extras.find_spec", lambda name: None if name == "ray" else object())
    result = CliRunner().invoke(app, ["cluster", *command])
    assert isinstance(result.exception, MissingExtraError)
    assert str(result.exception) == "slipstream cluster needs ray: pip install 'slipstream-server[cluster]'"


def test_no_other_command_imports_ray():
    code = "import sys, launcher.cli.app, launcher.supervision.serve; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_a_cluster_status_says_so_at_once_and_in_one_line():
    pytest.importorskip("ray", reason="Ray is not installed, which the extra `cluster` brings")
    result = CliRunner().invoke(app, ["cluster", "status", "--address", "127.0.0.1:1"])
    assert result.exit_code == 1
    assert result.stderr.startswith("no Ray cluster answers at 127.0.0.1:1") and result.stderr.count("\n") == 1
