from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slipstream.generation_config import SamplingDefaults, config_file, sampling_defaults
from slipstream.rpc.errors import FailedPreconditionError


def write(folder: Path, **content: Any) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "generation_config.json"
    path.write_text(json.dumps(content))
    return path


def test_what_names_a_sampling_parameter_counts(tmp_path: Path) -> None:
    qwen3 = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [2], "pad_token_id": 0}
    assert sampling_defaults(write(tmp_path, **qwen3)) == SamplingDefaults(temperature=0.6, top_k=20, top_p=0.95)
    rest = {"repetition_penalty": 1.05, "min_p": 0, "max_new_tokens": 512, "top_k": -1, "temperature": None}
    defaults = sampling_defaults(write(tmp_path, **rest))
    assert defaults.given() == {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.05, "max_tokens": 512}
    assert sampling_defaults(None).given() == {}


def test_the_file_is_that_of_the_model_of_another_folder_or_none(tmp_path: Path) -> None:
    model, other = tmp_path / "model", tmp_path / "other"
    model.mkdir()
    assert config_file(model, "auto") is None
    own, foreign = write(model, top_k=1), write(other, top_k=2)
    assert config_file(model, "auto") == own and config_file(model, str(other)) == foreign
    assert config_file(model, "none") is None and config_file(model, "vllm") is None
    with pytest.raises(FailedPreconditionError, match="'elsewhere' is neither auto nor none, and no folder with a gen"):
        config_file(model, "elsewhere")


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", "hot"), ("top_p", True), ("top_k", 20.5), ("max_new_tokens", 2**40), ("min_p", [1])],
)
def test_what_is_no_number_is_named(tmp_path: Path, field: str, value: Any) -> None:
    path = write(tmp_path, **{field: value})
    with pytest.raises(
        FailedPreconditionError, match=f"{path}: {field} must be a (number|whole number below 2.31), got "
    ):
        sampling_defaults(path)
