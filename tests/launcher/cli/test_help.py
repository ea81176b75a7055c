"""Help speaks of hosts, seconds and files, and of no types of Python."""

from __future__ import annotations

import re

import pytest
import typer
from typer.testing import CliRunner

from draft_service.config import DraftSettings
from gateway.config import GatewaySettings
from launcher.cli.app import app
from loadtest.__main__ import app as loadtest
from slipstream.settings import load
from training.cli import app as train
from verify_service.config import VerifySettings

TYPES = re.compile(r"<\w[^>]*>|\b(str|int|float|bool|tuple|Path|SecretStr|NoneType|null|None)\b|\(default: (\(.*)?\)")


def commands(program: typer.Typer) -> list[str]:
    return [each.name or each.callback.__name__.replace("_", "-") for each in program.registered_commands]


@pytest.mark.parametrize("name", [name for name in commands(app) if name not in ("train", "quantize")])
def test_commands_of_slipstream(name: str) -> None:
    result = CliRunner().invoke(app, [name, "--help"])
    assert result.exit_code == 0
    assert not TYPES.search(result.output), result.output


@pytest.mark.parametrize("name", commands(train))
def test_stages_of_training(name: str) -> None:
    result = CliRunner().invoke(train, [name, "--help"])
    assert result.exit_code == 0
    assert not TYPES.search(result.output), result.output


def test_load_tests() -> None:
    assert not TYPES.search(CliRunner().invoke(loadtest, ["--help"]).output)


@pytest.mark.parametrize("settings", [DraftSettings, GatewaySettings, VerifySettings])
def test_services(settings, capsys) -> None:
    with pytest.raises(SystemExit) as end:
        load(settings, "service", ["--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert not TYPES.search(shown), shown
    assert "--log-level {debug,info,warning,error}" in shown


def test_values_are_named_by_what_they_are(capsys) -> None:
    with pytest.raises(SystemExit):
        load(VerifySettings, "service", ["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for words in (
        "--model DIR",
        "--port PORT",
        "--hang-seconds SECONDS",
        "--feature-boundaries INT,...",
        "--proposers PROPOSER,...",
        "--attach-token SECRET",
        "--threads INT CPU threads of the model (default: 2)",
        "(default: cuda_ipc,shm,grpc)",
    ):
        assert words in shown
