from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.tokens.tokenizer_file import read_tokenizer
from slipstream.rpc.errors import FailedPreconditionError


@pytest.fixture
def folder(tokenizer_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tokenizer_folder, tmp_path / "model"))


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text("utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")


def set_id(content: dict[str, Any], token: str, token_id: int) -> None:
    content["model"]["vocab"][token] = token_id


def test_what_we_write_is_read(folder: Path) -> None:
    assert read_tokenizer(folder).encode("a").ids


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: set_id(c, "a", 4_000_000_000), "token 'a' has id 4000000000, the limit is 2097151"),
        (lambda c: set_id(c, "a", c["model"]["vocab"]["b"]), "tokens 'a' and 'b' have the same id"),
        (lambda c: set_id(c, "a", -1), "tokenizer.json: "),
        (lambda c: c["model"].update(type="Wings"), "tokenizer.json: "),
        (lambda c: c.update(model=None), "tokenizer.json: "),
        (lambda c: c["model"].update(merges=[["no", "such"]]), "tokenizer.json: "),
    ],
)
def test_what_lies_is_named_on_one_line(change: Callable[[dict[str, Any]], object], message: str, folder: Path) -> None:
    rewrite(folder, change)
    with pytest.raises(FailedPreconditionError, match=message) as raised:
        read_tokenizer(folder)
    assert "\n" not in raised.value.message


def test_large_special_and_missing_files_are_not_read(folder: Path) -> None:
    path = folder / "tokenizer.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(FailedPreconditionError, match="the file has 1099511627776 bytes, the limit is 268435456"):
        read_tokenizer(folder)
    path.unlink()
    with pytest.raises(FailedPreconditionError, match="not a regular file"):
        read_tokenizer(folder)
    os.mkfifo(path)
    with pytest.raises(FailedPreconditionError, match="not a regular file"):
        read_tokenizer(folder)


def test_tokens_beyond_the_model_are_warned_of(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    read_tokenizer(folder)
    assert not caplog.records
    (folder / "config.json").write_text('{"vocab_size": 100}')
    read_tokenizer(folder)
    assert "the model's vocabulary ends at 99" in caplog.text


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("tokenizer.json", "{}", "tokenizer.json: "),
        ("tokenizer_config.json", '{"chat_template": ' + "[" * 100_000, "nested too deeply"),
        ("tokenizer_config.json", "[1]", "tokenizer_config.json: not a JSON object"),
        ("tokenizer_config.json", '{"chat_template": 7}', "chat_template is of type int, must be a string"),
        ("tokenizer_config.json", '{"chat_template": "{% for"}', "the chat template does not compile"),
    ],
)
def test_the_gateway_says_in_one_line_why_it_does_not_start(file: str, content: str, words: str, folder: Path) -> None:
    (folder / file).write_text(content)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "gateway",
            f"--model={folder}",
            "--verify=127.0.0.1:1",
            "--http-port=0",
            "--grpc-port=0",
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1 and "cannot start" in line and words in line
