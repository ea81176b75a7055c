"""Flags, environment and file, in this order, and one line for each mistake."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import Field
from pydantic_settings import SettingsConfigDict

from slipstream.settings import Names, ServiceSettings, load


class Sample(ServiceSettings):
    """Serve a sample."""

    model_config = SettingsConfigDict(env_prefix="SLIPSTREAM_SAMPLE_")

    model: Path = Field(description="Folder of the model")
    port: int = Field(default=50052, ge=0, le=65535, description="Port")
    names: Names = Field(default=(), description="Names")
    cache: bool = Field(default=True, description="Cache")


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "sample.toml"
    file.write_text('model = "from-file"\nport = 1\nnames = ["file"]\n')
    monkeypatch.setenv("SLIPSTREAM_SAMPLE_PORT", "2")
    monkeypatch.setenv("SLIPSTREAM_SAMPLE_NAMES", "e,f")
    settings = load(Sample, "sample", ["--config", str(file), "--names", "a,b", "--no-cache"])
    assert settings.model == Path("from-file")
    assert settings.port == 2
    assert settings.names == ("a", "b")
    assert settings.cache is False
    assert load(Sample, "sample", ["--model", "m"]).names == ("e", "f")
    monkeypatch.setenv("SLIPSTREAM_SAMPLE_CONFIG", str(file))
    assert load(Sample, "sample", []).model == Path("from-file")


@pytest.mark.parametrize("flags", [["--names", "a,b"], ["--names", "a", "--names", "b"], ["--names=a", "--names=b"]])
def test_names_come_by_comma_and_by_repetition(flags: list[str]) -> None:
    assert load(Sample, "sample", ["--model", "m", *flags]).names == ("a", "b")


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ([], "sample: error: --model is required (or SLIPSTREAM_SAMPLE_MODEL)"),
        (["--model", "m", "--port", "70000"], "--port: should be less than or equal to 65535, got '70000'"),
        (["--model", "m", "--port", "x"], "--port: should be a valid integer"),
        (["--model", "m", "--bogus", "1"], "unrecognized arguments: --bogus"),
        (["--model", "m", "--config", "nowhere.toml"], "--config: no such file: nowhere.toml"),
    ],
)
def test_mistakes_exit_with_a_line_that_names_the_flag(
    flags: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        load(Sample, "sample", flags)
    assert caught.value.code == 2
    assert line in capsys.readouterr().err


@pytest.mark.parametrize(("text", "line"), [("prot = 1", "unknown setting 'prot'"), ("prot", "sample: error: ")])
def test_mistakes_in_the_file_are_named(
    tmp_path: Path, text: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sample.toml"
    file.write_text(text)
    with pytest.raises(SystemExit):
        load(Sample, "sample", ["--model", "m", "--config", str(file)])
    assert line in capsys.readouterr().err


def test_settings_are_frozen() -> None:
    settings = load(Sample, "sample", ["--model", "m"])
    with pytest.raises(ValueError, match="frozen"):
        settings.port = 1
