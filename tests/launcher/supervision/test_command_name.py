"""Commands are named as they run where their names are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.supervision.command_name import command_name


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a virtual environment, which is the working folder, and nothing on the PATH."""
    programs = tmp_path / "work" / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "slipstream"):
        (programs / name).touch(mode=0o755)
    monkeypatch.setattr("sys.executable", str(programs / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path / "work")
    return programs


def test_the_shorter_of_two_paths(environment: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert command_name() == ".venv/bin/slipstream"
    monkeypatch.chdir(environment)
    assert command_name() == "./slipstream"
    monkeypatch.chdir("/")
    assert command_name() in (str(environment / "slipstream"), str(environment / "slipstream")[1:])


def test_its_name_alone_where_the_shell_finds_the_same(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(environment))
    assert command_name() == "slipstream"
    (environment.parent / "other").mkdir()
    (environment.parent / "other" / "slipstream").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(environment.parent / "other"))
    assert command_name() == ".venv/bin/slipstream"


def test_the_module_where_nothing_is_installed(environment: Path) -> None:
    (environment / "slipstream").unlink()
    assert command_name() == f"{environment / 'python'} -m launcher"
