from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from slipstream_kernels.models.checkpoint.model_config import CheckpointError, ModelConfig
from slipstream_kernels.ops.rotary import Llama3Scaling

BASE = {
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 4096,
}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


def read(folder: Path, changes: dict[str, Any], generation: dict[str, Any] | None = None) -> ModelConfig:
    entries = {name: value for name, value in (BASE | changes).items() if value != "absent"}
    (folder / "config.json").write_text(json.dumps(entries))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return ModelConfig.from_folder(folder)


def test_defaults(tmp_path: Path) -> None:
    config = read(tmp_path, {})
    assert (config.num_kv_heads, config.head_dim, config.rope_theta, config.rms_norm_eps) == (2, 64, 10000.0, 1e-6)
    assert config.eos_token_ids == () and config.bos_token_id is None and not config.tie_word_embeddings
    assert config.q_size == config.kv_size == 128 and not config.attention_bias and not config.head_norms


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_theta": 5e5},
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
        {"rope_theta": None, "rope_scaling": None, "rope_parameters": {"rope_theta": 5e5}},
    ],
)
def test_rope_theta_of_both_generations(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert read(tmp_path, changes).rope_theta == 5e5


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_scaling": {"type": "llama3", **LLAMA3}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, **LLAMA3}},
    ],
)
def test_llama3_scaling(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert read(tmp_path, changes).rope_scaling == Llama3Scaling(8.0, 1.0, 4.0, 64)


def test_eos_of_generation_config_comes_first(tmp_path: Path) -> None:
    assert read(tmp_path, {"eos_token_id": 3}).eos_token_ids == (3,)
    assert read(tmp_path, {"eos_token_id": 3}, {"eos_token_id": [4, 5]}).eos_token_ids == (4, 5)
    assert read(tmp_path, {"eos_token_id": [3, 6]}, {}).eos_token_ids == (3, 6)


def test_families(tmp_path: Path) -> None:
    assert read(tmp_path, {"model_type": "qwen2", "attention_bias": True}).attention_bias
    assert read(tmp_path, {"model_type": "mimo", "attention_bias": True}).attention_bias
    assert read(tmp_path, {"model_type": "qwen3"}).head_norms
    assert read(tmp_path, {"model_type": "mistral", "sliding_window": 1024}).max_context == 1024
    assert read(tmp_path, {"model_type": "qwen2", "sliding_window": 1024}).max_context == 4096


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "model_type is 'gpt2'"),
        ({"model_type": "absent"}, "model_type is None, must be a string"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"attention_bias": True}, "attention_bias is set"),
        ({"mlp_bias": True}, "mlp_bias is set"),
        ({"model_type": "qwen2", "use_sliding_window": True}, "use_sliding_window is set"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is set"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling.rope_type is 'yarn'"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "factor is None"),
        ({"vocab_size": "absent"}, "vocab_size is None, must be a positive integer"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_nextn_predict_layers": -1}, "num_nextn_predict_layers is -1"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps is 'small'"),
        ({"hidden_size": 120, "head_dim": 64}, "hidden_size is 120, must be a multiple of 16"),
        ({"head_dim": 60}, "head_dim is 60"),
        ({"num_attention_heads": 4, "num_key_value_heads": 3}, "not a multiple of num_key_value_heads, 3"),
        ({"eos_token_id": "end"}, "eos_token_id is 'end'"),
    ],
)
def test_what_we_cannot_run_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path, changes)


@pytest.mark.parametrize("content", ["", "[]", "{", "\xff"])
def test_unreadable_config(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"config\.json"):
        ModelConfig.from_folder(tmp_path)


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        ModelConfig.from_folder(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, the limit is 1024"),
        ({"max_position_embeddings": 10**12}, "max_position_embeddings is 1000000000000, the limit is 16777216"),
        ({"vocab_size": 10**9}, "vocab_size is 1000000000, the limit is 1048576"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan, must be a positive number"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps is inf, must be a positive number"),
        ({"rms_norm_eps": 1e-40}, "rms_norm_eps is 1e-40, must be from 1e-30 to 1"),
        ({"rope_theta": 1e-300}, "rope_theta is 1e-300, must be from 1 to"),
        ({"rope_theta": 10**400}, "rope_theta is 1000"),
        ({"rope_parameters": [1]}, r"rope_parameters is \[1\], must be an object"),
        ({"rope_scaling": {"rope_type": "llama3", **LLAMA3, "low_freq_factor": 4.0}}, "must be below high_freq_factor"),
        ({"rope_scaling": {"rope_type": "llama3", **LLAMA3, "factor": float("nan")}}, "factor is nan"),
        ({"eos_token_id": 512}, "eos_token_id is 512, the vocabulary has ids from 0 to 511"),
        ({"eos_token_id": [3, -1]}, "must be a token id or a list of token ids"),
        ({"eos_token_id": True}, "eos_token_id is True"),
        ({"bos_token_id": 10**6}, "bos_token_id is 1000000, the vocabulary"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes', must be true or false"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, supported is 1"),
        ({"model_type": ["llama"]}, r"model_type is \['llama'\], must be a string"),
        ({"model_type": "x" * 10**6}, r"^.{0,300}$"),
        ({"quantization_config": {"quant_method": "gguf", "bits": 4}}, "quant_method 'gguf'"),
        ({"head_dim": 10**6}, "head_dim is 1000000, the limit is 4096"),
    ],
)
def test_what_lies_is_named_on_one_line(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as raised:
        read(tmp_path, changes)
    assert "\n" not in str(raised.value)


def test_the_end_of_text_of_a_generation_config_lies_within_the_vocabulary(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"generation_config\.json: eos_token_id is 900, the vocabulary"):
        read(tmp_path, {}, {"eos_token_id": 900})


def test_deep_long_and_special_files_are_not_read(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
    with pytest.raises(CheckpointError, match="nested too deeply"):
        ModelConfig.from_folder(tmp_path)
    with config.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(CheckpointError, match="the file has 1099511627776 bytes, the limit is 67108864"):
        ModelConfig.from_folder(tmp_path)
    config.unlink()
    os.mkfifo(config)
    with pytest.raises(CheckpointError, match="not a regular file"):
        ModelConfig.from_folder(tmp_path)


def test_a_message_shows_no_control_characters() -> None:
    error = CheckpointError("unexpected tensor a\nb\x1b[31m\ud800 " + "x" * 10_000)
    assert str(error).startswith(r"unexpected tensor a b\x1b[31m\ud800 x") and len(str(error)) < 700
