from __future__ import annotations

import json
from pathlib import Path

import pytest

from slipstream.json_file import read_object
from slipstream.lfs_pointer import BEGINNING
from slipstream.model_folder import has_chat_template, no_such_folder, refuse_pointers
from slipstream.rpc.errors import FailedPreconditionError
from slipstream.speculation.checkpoint_names import method_of
from slipstream_kernels.models.checkpoint.config_fields import CheckpointError
from slipstream_kernels.models.checkpoint.config_fields import refuse_pointer as refuse_on_device
from slipstream_kernels.models.checkpoint.fingerprint import fingerprint

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 1503300328\n"
WORDS = "a git-lfs pointer stands here, not the file itself; run `git lfs pull` in"


def test_a_hubs_name_is_told_from_a_path() -> None:
    told = no_such_folder("Qwen/Qwen3-0.6B")
    assert "`hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B`" in told and "nothing is downloaded here" in told
    for path in ("/srv/models/qwen", "./org/name", "../name", "org/name/more", "name", "org/"):
        assert "hf download" not in no_such_folder(path)
    assert no_such_folder("name") == f"no such folder: {Path.cwd() / 'name'}"


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model-00001-of-00002.safetensors", "medusa.pt"])
def test_pointers_in_a_folder_are_found(tmp_path: Path, name: str) -> None:
    (tmp_path / "README.md").write_bytes(POINTER)
    (tmp_path / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    (tmp_path / "empty.json").touch()
    refuse_pointers(tmp_path)
    (tmp_path / name).write_bytes(POINTER)
    with pytest.raises(FailedPreconditionError) as raised:
        refuse_pointers(tmp_path)
    assert str(raised.value) == f"{tmp_path / name}: {WORDS} {tmp_path}"


def test_every_reader_says_the_same_of_a_pointer(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(POINTER)
    words = f"{path}: {WORDS} {tmp_path}"
    with pytest.raises(FailedPreconditionError) as raised:
        read_object(path)
    assert str(raised.value) == words
    with pytest.raises(CheckpointError) as refused:
        refuse_on_device(path, POINTER)
    assert str(refused.value) == words
    with pytest.raises(ValueError, match=WORDS):
        method_of(tmp_path)
    assert POINTER.startswith(BEGINNING)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_models_identity_is_not_that_of_pointers(tiny_model: Path, tmp_path: Path, name: str) -> None:
    for path in tiny_model.iterdir():
        (tmp_path / path.name).write_bytes(POINTER if path.name == name else path.read_bytes())
    with pytest.raises(CheckpointError, match=WORDS):
        fingerprint(tmp_path)


def test_whether_there_is_a_chat_template(tmp_path: Path) -> None:
    config = tmp_path / "tokenizer_config.json"
    assert not has_chat_template(tmp_path)
    for content in ('{"eos_token": "x"}', '{"chat_template": null}', "{"):
        config.write_text(content)
        assert not has_chat_template(tmp_path)
    config.write_text(json.dumps({"chat_template": "{{ messages }}"}))
    assert has_chat_template(tmp_path)
    config.unlink()
    (tmp_path / "chat_template.jinja").touch()
    assert has_chat_template(tmp_path)
